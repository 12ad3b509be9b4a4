(* Backpropagation through attention: the equations of the page give the derivatives.

   A gradient is what multiplies the velocity of the argument: G is the gradient of L at X if along
   every differentiable curve through X the derivative of L is the sum of G times the velocity. *)

From MHA Require Import Sums Statements.
From Coquelicot Require Import Coquelicot.

Lemma d_mult (f g : R -> R) (x df dg : R) :
  is_derive f x df -> is_derive g x dg ->
  is_derive (fun t => f t * g t) x (df * g x + f x * dg).
Proof. intros; apply (is_derive_mult f g x df dg); auto; intros; apply Rmult_comm. Qed.

Lemma d_const_mult (f : R -> R) (x df c : R) :
  is_derive f x df -> is_derive (fun t => c * f t) x (c * df).
Proof. intros; now apply (is_derive_scal f x c df). Qed.

Lemma d_exp (f : R -> R) (x df : R) :
  is_derive f x df -> is_derive (fun t => exp (f t)) x (exp (f x) * df).
Proof.
  intros H. rewrite Rmult_comm. apply (is_derive_comp exp f x); [apply is_derive_exp | easy].
Qed.

Lemma d_sum (n : nat) (f : R -> nat -> R) (x : R) (df : nat -> R) :
  (forall i, (i < n)%nat -> is_derive (fun t => f t i) x (df i)) ->
  is_derive (fun t => sum n (f t)) x (sum n df).
Proof.
  induction n; intros H; simpl; [apply (is_derive_const 0 x) |].
  apply (is_derive_plus (fun t => sum n (f t)) (fun t => f t n)); auto.
Qed.

(* The derivative of a softmax along a curve of its scores. *)
Lemma d_softmax (n : nat) (s : R -> nat -> R) (S A dS : nat -> R) (j : nat) :
  (j < n)%nat ->
  (forall k, (k < n)%nat -> is_derive (fun t => s t k) 0 (dS k)) ->
  (forall k, (k < n)%nat -> s 0 k = S k) ->
  (forall k, (k < n)%nat -> A k = exp (S k) / sum n (fun k' => exp (S k'))) ->
  is_derive (fun t => exp (s t j) / sum n (fun k => exp (s t k))) 0
    (A j * (dS j - sum n (fun k => A k * dS k))).
Proof.
  intros Hj D E HA.
  assert (P : 0 < sum n (fun k => exp (S k))) by (apply exp_sum_pos; lia).
  assert (E' : sum n (fun k => exp (s 0 k)) = sum n (fun k => exp (S k))).
  { entries. now rewrite E. }
  evar_last.
  - apply is_derive_div.
    + apply d_exp, D, Hj.
    + apply (d_sum n (fun t k => exp (s t k))). intros k Hk. apply d_exp, D, Hk.
    + rewrite E'. lra.
  - simpl. rewrite E', E by easy.
    rewrite (sum_ext n (fun k => exp (s 0 k) * dS k) (fun k => exp (S k) * dS k))
      by (intros; now rewrite E).
    rewrite (sum_ext n (fun k => A k * dS k)
      (fun k => exp (S k) * dS k * / sum n (fun k' => exp (S k')))).
    + rewrite sum_r, HA by easy. field. lra.
    + intros k Hk. rewrite HA by easy. unfold Rdiv; ring.
Qed.

Definition softmax (n : nat) (s : nat -> R) (j : nat) : R := exp (s j) / sum n (fun k => exp (s k)).

Theorem softmax_jacobian (n_j : nat) (S A : nat -> R) (dA_dS : nat -> nat -> R) :
  (forall j, (j < n_j)%nat -> A j = softmax n_j S j) ->
  grad_softmax_jacobian n_j dA_dS A ->
  forall j' j, (j' < n_j)%nat -> (j < n_j)%nat ->
  is_derive (fun t => softmax n_j (fun k => S k + t * delta j k) j') 0 (dA_dS j' j).
Proof.
  intros HA H j' j Hj' Hj. evar_last.
  - apply (d_softmax n_j (fun t k => S k + t * delta j k) S A (delta j)); auto.
    + intros k Hk. auto_derive; [easy | ring].
    + intros; ring.
  - rewrite H by easy. f_equal. rewrite delta_sym. f_equal.
    rewrite <- (sum_delta n_j j A Hj). entries. ring.
Qed.

Definition gradient1 (n : nat) (L : (nat -> R) -> R) (X G : nat -> R) : Prop :=
  forall (curve : R -> nat -> R) (velocity : nat -> R),
  (forall j, (j < n)%nat -> is_derive (fun t => curve t j) 0 (velocity j)) ->
  (forall j, (j < n)%nat -> curve 0 j = X j) ->
  is_derive (fun t => L (curve t)) 0 (sum n (fun j => G j * velocity j)).

(* What a softmax gives back, without a Jacobian. *)
Lemma backward_of_a_row (n : nat) (A dA dS v : nat -> R) (r : R) :
  r = sum n (fun j => A j * dA j) -> (forall j, (j < n)%nat -> dS j = A j * (dA j - r)) ->
  sum n (fun j => dA j * (A j * (v j - sum n (fun k => A k * v k)))) = sum n (fun j => dS j * v j).
Proof.
  intros Hr H.
  rewrite (sum_ext n (fun j => dS j * v j) (fun j => A j * dA j * v j - r * (A j * v j)))
    by (intros; rewrite H by easy; ring).
  rewrite sum_minus, sum_l, Hr, <- sum_r, <- sum_minus. entries. ring.
Qed.

Theorem softmax_vector_jacobian (n_j : nat) (L : (nat -> R) -> R) (S A dL_dA dL_dS : nat -> R) (r : R) :
  (forall j, (j < n_j)%nat -> A j = softmax n_j S j) ->
  gradient1 n_j L A dL_dA ->
  grad_softmax_1 n_j dL_dS A dL_dA r -> grad_softmax_2 n_j r A dL_dA ->
  gradient1 n_j (fun s => L (softmax n_j s)) S dL_dS.
Proof.
  intros HA HL HS Hr curve v D E.
  rewrite <- (backward_of_a_row n_j A dL_dA dL_dS v r Hr HS).
  apply (HL (fun t => softmax n_j (curve t))).
  - intros j Hj. apply (d_softmax n_j curve S A v); auto.
  - intros j Hj. rewrite HA by easy. unfold softmax. f_equal; [now rewrite E |].
    entries. now rewrite E.
Qed.

Definition gradient3 (n1 n2 n3 : nat) (L : (nat -> nat -> nat -> R) -> R)
    (X G : nat -> nat -> nat -> R) : Prop :=
  forall (curve : R -> nat -> nat -> nat -> R) (velocity : nat -> nat -> nat -> R),
  (forall h i c, (h < n1)%nat -> (i < n2)%nat -> (c < n3)%nat ->
    is_derive (fun t => curve t h i c) 0 (velocity h i c) /\ curve 0 h i c = X h i c) ->
  is_derive (fun t => L (curve t)) 0
    (sum n1 (fun h => sum n2 (fun i => sum n3 (fun c => G h i c * velocity h i c)))).

Section Attention.
Variables (n_h n_i n_j n_a n_c : nat) (d_k : R).

(* The forward computation as a function. *)
Definition scores (Q K : nat -> nat -> nat -> R) h i j :=
  sum n_a (fun a => 1 / sqrt d_k * Q h i a * K h j a).
Definition output (Q K V : nat -> nat -> nat -> R) h i c :=
  sum n_j (fun j => softmax n_j (scores Q K h i) j * V h j c).

Variables (L : (nat -> nat -> nat -> R) -> R).
Variables (Q K V S A O dL_dO dL_dA dL_dS dL_dQ dL_dK dL_dV : nat -> nat -> nat -> R).
Variable r : nat -> nat -> R.

Hypothesis forward_S : index_scores n_h n_i n_j n_a S d_k Q K.
Hypothesis forward_A : index_weights n_h n_i n_j A S.
Hypothesis forward_O : index_heads n_h n_i n_c n_j O A V.
Hypothesis backward_A : grad_weights n_h n_i n_j n_c dL_dA V dL_dO.
Hypothesis row_sum : forall h i, (h < n_h)%nat -> (i < n_i)%nat ->
  r h i = sum n_j (fun j => A h i j * dL_dA h i j).
Hypothesis backward_S : grad_scores n_h n_i n_j dL_dS A dL_dA r.
Hypothesis backward_Q : grad_queries n_h n_i n_a n_j dL_dQ d_k K dL_dS.
Hypothesis backward_K : grad_rest_3 n_h n_j n_a n_i dL_dK d_k Q dL_dS.
Hypothesis backward_V : grad_values n_h n_j n_c n_i dL_dV A dL_dO.

(* The row sum that FlashAttention's backward pass computes first: rowsum(dO * O). *)
Theorem row_sums_from_outputs : grad_row_products n_h n_i n_j n_c r A dL_dA V dL_dO O.
Proof using forward_O backward_A row_sum.
  intros h i Hh Hi. repeat split; [now apply row_sum | |].
  - entries. rewrite backward_A, <- sum_l by easy. entries. ring.
  - rewrite sum_swap. entries. rewrite forward_O, <- sum_r by easy. entries. ring.
Qed.

(* Each row of score gradients adds up to zero: a common shift of a row changes nothing. *)
Theorem score_gradients_add_up_to_zero :
  (0 < n_j)%nat ->
  grad_row_sum n_h n_i n_j dL_dS r A /\
  forall h i, (h < n_h)%nat -> (i < n_i)%nat -> sum n_j (fun j => dL_dS h i j) = 0.
Proof using forward_A row_sum backward_S.
  intros Hn.
  assert (H : grad_row_sum n_h n_i n_j dL_dS r A).
  { intros h i Hh Hi. rewrite row_sum at 1 by easy. rewrite <- sum_minus. entries.
    rewrite backward_S by easy. ring. }
  split; [easy |]. intros h i Hh Hi. rewrite H, sum_r by easy.
  replace (sum n_j (A h i)) with 1; [ring |].
  rewrite (sum_ext n_j (A h i) (fun j => exp (S h i j) / sum n_j (fun j' => exp (S h i j'))))
    by auto.
  rewrite sum_div. pose proof (exp_sum_pos n_j (S h i) Hn). field; lra.
Qed.

(* If all of Q, K and V move, the loss moves by what the page's gradients say. *)
Theorem gradients_of_attention :
  gradient3 n_h n_i n_c L O dL_dO ->
  forall (Qt Kt Vt : R -> nat -> nat -> nat -> R) (vQ vK vV : nat -> nat -> nat -> R),
  (forall h i a, (h < n_h)%nat -> (i < n_i)%nat -> (a < n_a)%nat ->
    is_derive (fun t => Qt t h i a) 0 (vQ h i a) /\ Qt 0 h i a = Q h i a) ->
  (forall h j a, (h < n_h)%nat -> (j < n_j)%nat -> (a < n_a)%nat ->
    is_derive (fun t => Kt t h j a) 0 (vK h j a) /\ Kt 0 h j a = K h j a) ->
  (forall h j c, (h < n_h)%nat -> (j < n_j)%nat -> (c < n_c)%nat ->
    is_derive (fun t => Vt t h j c) 0 (vV h j c) /\ Vt 0 h j c = V h j c) ->
  is_derive (fun t => L (output (Qt t) (Kt t) (Vt t))) 0
    (sum n_h (fun h =>
      sum n_i (fun i => sum n_a (fun a => dL_dQ h i a * vQ h i a)) +
      sum n_j (fun j => sum n_a (fun a => dL_dK h j a * vK h j a)) +
      sum n_j (fun j => sum n_c (fun c => dL_dV h j c * vV h j c)))).
Proof.
  intros HL Qt Kt Vt vQ vK vV HQ HK HV.
  set (vS h i j := sum n_a (fun a => 1 / sqrt d_k * vQ h i a * K h j a + 1 / sqrt d_k * Q h i a * vK h j a)).
  set (vA h i j := A h i j * (vS h i j - sum n_j (fun k => A h i k * vS h i k))).
  set (vO h i c := sum n_j (fun j => vA h i j * V h j c + A h i j * vV h j c)).
  assert (DS : forall h i j, (h < n_h)%nat -> (i < n_i)%nat -> (j < n_j)%nat ->
    is_derive (fun t => scores (Qt t) (Kt t) h i j) 0 (vS h i j)).
  { intros h i j Hh Hi Hj. apply (d_sum n_a (fun t a => 1 / sqrt d_k * Qt t h i a * Kt t h j a)).
    intros a Ha. destruct (HQ h i a) as [DQ EQ], (HK h j a) as [DK EK]; auto.
    rewrite <- EQ, <- EK.
    apply (d_mult (fun t => 1 / sqrt d_k * Qt t h i a) (fun t => Kt t h j a)); [| easy].
    now apply (d_const_mult (fun t => Qt t h i a)). }
  assert (ES : forall h i j, (h < n_h)%nat -> (i < n_i)%nat -> (j < n_j)%nat ->
    scores (Qt 0) (Kt 0) h i j = S h i j).
  { intros h i j Hh Hi Hj. rewrite forward_S by easy. unfold scores. entries.
    now rewrite (proj2 (HQ h i i0 Hh Hi H)), (proj2 (HK h j i0 Hh Hj H)). }
  assert (EA : forall h i j, (h < n_h)%nat -> (i < n_i)%nat -> (j < n_j)%nat ->
    softmax n_j (scores (Qt 0) (Kt 0) h i) j = A h i j).
  { intros h i j Hh Hi Hj. rewrite forward_A by easy. unfold softmax. rewrite ES by easy.
    f_equal. entries. now rewrite ES. }
  evar_last.
  - apply (HL (fun t => output (Qt t) (Kt t) (Vt t)) vO).
    intros h i c Hh Hi Hc. split.
    + apply (d_sum n_j (fun t j => softmax n_j (scores (Qt t) (Kt t) h i) j * Vt t h j c)).
      intros j Hj. destruct (HV h j c) as [DV EV]; auto.
      rewrite <- EV, <- (EA h i j) by easy.
      apply (d_mult (fun t => softmax n_j (scores (Qt t) (Kt t) h i) j) (fun t => Vt t h j c)); [| easy].
      apply (d_softmax n_j (fun t => scores (Qt t) (Kt t) h i) (S h i) (A h i) (vS h i)); auto.
    + rewrite forward_O by easy. unfold output. entries.
      now rewrite EA, (proj2 (HV h i0 c Hh H Hc)).
  - simpl. apply sum_ext; intros h Hh.
    (* the way back: from outputs to weights and values, to scores, to queries and keys *)
    transitivity (sum n_i (fun i => sum n_j (fun j => dL_dS h i j * vS h i j))
                  + sum n_j (fun j => sum n_c (fun c => dL_dV h j c * vV h j c))).
    + rewrite (sum_ext n_j (fun j => sum n_c (fun c => dL_dV h j c * vV h j c))
        (fun j => sum n_i (fun i => sum n_c (fun c => A h i j * dL_dO h i c * vV h j c)))).
      2: { intros j Hj. rewrite sum_swap. entries. rewrite backward_V, <- sum_r by easy. easy. }
      rewrite (sum_swap n_j n_i), <- sum_plus. apply sum_ext; intros i Hi.
      rewrite <- (backward_of_a_row n_j (A h i) (dL_dA h i) (dL_dS h i) (vS h i) (r h i))
        by (intros; auto).
      rewrite <- sum_plus. unfold vO.
      transitivity (sum n_c (fun c => sum n_j (fun j =>
        dL_dO h i c * (vA h i j * V h j c + A h i j * vV h j c)))).
      { entries. now rewrite sum_l. }
      rewrite sum_swap. apply sum_ext; intros j Hj.
      rewrite backward_A, <- sum_r, <- sum_plus by easy. apply sum_ext; intros c Hc.
      unfold vA. ring.
    + f_equal.
      rewrite (sum_ext n_j (fun j => sum n_a (fun a => dL_dK h j a * vK h j a))
        (fun j => sum n_i (fun i => sum n_a (fun a => 1 / sqrt d_k * Q h i a * dL_dS h i j * vK h j a)))).
      2: { intros j Hj. rewrite sum_swap. entries. rewrite backward_K, <- sum_r by easy. easy. }
      rewrite (sum_swap n_j n_i), <- sum_plus. apply sum_ext; intros i Hi.
      rewrite (sum_ext n_a (fun a => dL_dQ h i a * vQ h i a)
        (fun a => sum n_j (fun j => 1 / sqrt d_k * K h j a * dL_dS h i j * vQ h i a))).
      2: { intros a Ha. rewrite backward_Q, <- sum_r by easy. easy. }
      rewrite sum_swap, <- sum_plus. apply sum_ext; intros j Hj.
      unfold vS. rewrite <- sum_l, <- sum_plus. apply sum_ext; intros a Ha. ring.
Qed.

End Attention.

(* A linear map X W in each head, and the gradient that it passes to W. *)
Definition project (n : nat) (X : nat -> nat -> R) (W : nat -> nat -> nat -> R) h i a :=
  sum n (fun b => X i b * W h b a).

Theorem gradient_of_query_weights (n_h n_i n_a n_b : nat) (L : (nat -> nat -> nat -> R) -> R)
    (Q W_Q dL_dQ dL_dW_Q : nat -> nat -> nat -> R) (X : nat -> nat -> R) :
  index_query n_h n_i n_a n_b Q X W_Q -> grad_w_q n_h n_b n_a n_i dL_dW_Q X dL_dQ ->
  gradient3 n_h n_i n_a L Q dL_dQ ->
  gradient3 n_h n_b n_a (fun W => L (project n_b X W)) W_Q dL_dW_Q.
Proof.
  intros HQ HG HL curve v D. evar_last.
  - apply (HL (fun t => project n_b X (curve t)) (project n_b X v)).
    intros h i a Hh Hi Ha. split.
    + apply (d_sum n_b (fun t b => X i b * curve t h b a)).
      intros b Hb. apply (d_const_mult (fun t => curve t h b a)), (D h b a Hh Hb Ha).
    + rewrite HQ by easy. unfold project. entries. now rewrite (proj2 (D h i0 a Hh H Ha)).
  - simpl. apply sum_ext; intros h Hh. unfold project.
    transitivity (sum n_i (fun i => sum n_b (fun b => sum n_a (fun a =>
      X i b * dL_dQ h i a * v h b a)))).
    + apply sum_ext; intros i Hi. rewrite sum_swap. entries. rewrite <- sum_l. entries. ring.
    + rewrite sum_swap. apply sum_ext; intros b Hb. rewrite sum_swap.
      apply sum_ext; intros a Ha. now rewrite HG, <- sum_r.
Qed.

(* Weights computed again from the stored logarithm of the sum, as FlashAttention does. *)
Theorem weights_from_the_log_sum (n_h n_i n_j : nat) (lam : nat -> nat -> R)
    (S A : nat -> nat -> nat -> R) :
  (0 < n_j)%nat -> grad_recompute_1 n_h n_i n_j lam S -> index_weights n_h n_i n_j A S ->
  grad_recompute_2 n_h n_i n_j A S lam.
Proof.
  intros Hn HL HA h i j Hh Hi Hj. rewrite HA, HL by easy. unfold Rminus.
  rewrite exp_plus, exp_Ropp, exp_ln; [easy | now apply exp_sum_pos].
Qed.
