(* What a softmax does not notice, and what changes its temperature; sinks. *)

From MHA Require Import Sums Statements.

Theorem softmax_ignores_shifts (n_i n_j : nat) (S : nat -> nat -> R) (m : nat -> R) :
  sdpa_shift n_i n_j S m.
Proof.
  intros i j Hi Hj.
  rewrite (sum_ext _ (fun j' => exp (S i j' - m i)) (fun j' => exp (S i j') * / exp (m i))).
  - rewrite sum_r.
    assert (0 < sum n_j (fun j' => exp (S i j'))) by (apply exp_sum_pos; lia).
    exps; lra.
  - intros; exps.
Qed.

(* Dividing the scores by a temperature divides the log odds between any two keys by it. *)
Theorem temperature_divides_log_odds (n_h n_i n_j : nat) (tau : R)
    (S A S_tau A_tau : nat -> nat -> nat -> R) :
  0 < tau -> (forall h i j, S_tau h i j = S h i j / tau) ->
  index_weights n_h n_i n_j A S -> index_weights n_h n_i n_j A_tau S_tau ->
  forall h i j k, (h < n_h)%nat -> (i < n_i)%nat -> (j < n_j)%nat -> (k < n_j)%nat ->
  ln (A_tau h i j / A_tau h i k) = ln (A h i j / A h i k) / tau.
Proof.
  intros T E W W' h i j k Hh Hi Hj Hk.
  assert (odds : forall s : nat -> R,
    ln (exp (s j) / sum n_j (fun j' => exp (s j')) / (exp (s k) / sum n_j (fun j' => exp (s j'))))
    = s j - s k).
  { intros s. assert (0 < sum n_j (fun j' => exp (s j'))) by (apply exp_sum_pos; lia).
    rewrite <- (ln_exp (s j - s k)). f_equal. exps; lra. }
  rewrite W, W, W', W' by easy. rewrite !odds, !E. field; lra.
Qed.

(* Scaling the queries is scaling the scores. *)
Theorem scale_of_queries (n_i n_j n_a : nat) (d_k r : R) (S Q K S' Q' : nat -> nat -> R) :
  sdpa_scores n_i n_j n_a S d_k Q K -> sdpa_scores n_i n_j n_a S' d_k Q' K ->
  (forall i a, Q' i a = r * Q i a) ->
  forall i j, (i < n_i)%nat -> (j < n_j)%nat -> S' i j = r * S i j.
Proof.
  intros H H' E i j Hi Hj. rewrite H, H' by easy.
  replace (r * (1 / sqrt d_k * sum n_a (fun a => Q i a * K j a)))
    with (1 / sqrt d_k * (r * sum n_a (fun a => Q i a * K j a))) by ring.
  f_equal. rewrite <- sum_l. entries. rewrite E. ring.
Qed.

(* A sink logit S_0 is one more key, with score S_0 and value zero. *)
Theorem sink_is_a_key_with_value_zero (n_h n_i n_c n_j : nat)
    (O S V S' V' A' O' : nat -> nat -> nat -> R) (S_0 : nat -> nat -> R) :
  sink_denominator n_h n_i n_c n_j O S V S_0 ->
  index_weights n_h n_i (n_j + 1) A' S' -> index_heads n_h n_i n_c (n_j + 1) O' A' V' ->
  (forall h i j, (j < n_j)%nat -> S' h i j = S h i j) -> (forall h i, S' h i n_j = S_0 h i) ->
  (forall h j c, (j < n_j)%nat -> V' h j c = V h j c) -> (forall h c, V' h n_j c = 0) ->
  forall h i c, (h < n_h)%nat -> (i < n_i)%nat -> (c < n_c)%nat -> O h i c = O' h i c.
Proof.
  intros H W U S1 S2 V1 V2 h i c Hh Hi Hc.
  rewrite U, H by easy.
  assert (E : sum (n_j + 1) (fun j => exp (S' h i j))
              = exp (S_0 h i) + sum n_j (fun j => exp (S h i j))).
  { rewrite sum_split; simpl. rewrite Nat.add_0_r, S2, Rplus_0_l, Rplus_comm.
    f_equal; entries. now rewrite S1. }
  rewrite sum_split; simpl. rewrite Nat.add_0_r, V2, <- E, <- sum_div, Rmult_0_r, !Rplus_0_l, Rplus_0_r.
  entries. rewrite W, S1, V1 by lia. unfold Rdiv; ring.
Qed.

(* Averaging values and projecting the average are the same. *)
Theorem average_then_project (n_i n_j n_c n_b : nat) (A V X W_V : nat -> nat -> R) :
  (forall j c, V j c = sum n_b (fun b => X j b * W_V b c)) ->
  sdpa_average n_i n_j n_c n_b A V X W_V.
Proof.
  intros H i c _ _. split.
  - entries. now rewrite H.
  - transitivity (sum n_j (fun j => sum n_b (fun b => A i j * X j b * W_V b c))).
    + entries. rewrite <- sum_l. entries. ring.
    + rewrite sum_swap. entries. apply sum_r.
Qed.
