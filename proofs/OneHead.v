(* One head is wrong by at least 1/4 on the task "which of the two words occur"; two heads are exact. *)

From MHA Require Import Sums Statements.

Lemma between (x e : R) : Rabs x <= e -> - e <= x <= e.
Proof. unfold Rabs. destruct (Rcase_abs x); lra. Qed.

(* A head's output for pq is an average of what p and q offer, with weights A of the query p. *)
Theorem one_head_misses_by_a_quarter (A : nat -> nat -> R) (u y : nat -> nat -> R) (e : R) :
  layer_hull_1 1 2 2 y A u ->
  0 <= A 0%nat 0%nat -> 0 <= A 0%nat 1%nat -> A 0%nat 0%nat + A 0%nat 1%nat = 1 ->
  (* for pp the output is u 0, for qq it is u 1, whatever the weights; no feature errs by more than e *)
  (forall d, (d < 2)%nat ->
    Rabs (u 0%nat d - delta d 0) <= e /\ Rabs (u 1%nat d - delta d 1) <= e /\ Rabs (y 0%nat d - 1) <= e) ->
  1 / 4 <= e.
Proof.
  intros H A0 A1 A2 E.
  destruct (E 0%nat ltac:(lia)) as (P0 & Q0 & Y0), (E 1%nat ltac:(lia)) as (P1 & Q1 & Y1).
  rewrite H in Y0, Y1 by lia. simpl in *. unfold delta in *; simpl in *.
  repeat match goal with X : Rabs _ <= _ |- _ => apply between in X end.
  set (a := A 0%nat 0%nat) in *. replace (A 0%nat 1%nat) with (1 - a) in * by lra.
  pose proof (Rmult_le_pos a (1 + 2 * e - (u 0%nat 0%nat + u 0%nat 1%nat)) A0 ltac:(lra)).
  pose proof (Rmult_le_pos (1 - a) (1 + 2 * e - (u 1%nat 0%nat + u 1%nat 1%nat)) A1 ltac:(lra)).
  lra.
Qed.

(* A third token z in front lets a head weigh p and q by ratios w_p and w_q. Repeating a word then
   gives it away: the output for zpq is an average of those for zpp and zqq. *)
Section Spare.
Variables (w_p w_q e : R) (u_z u_p u_q y_pp y_qq y_pq : nat -> R).
Hypotheses (positive_p : 0 < w_p) (positive_q : 0 < w_q).
Hypothesis zpp : forall d, y_pp d = (u_z d + 2 * w_p * u_p d) / (1 + 2 * w_p).
Hypothesis zqq : forall d, y_qq d = (u_z d + 2 * w_q * u_q d) / (1 + 2 * w_q).
Hypothesis zpq : forall d, y_pq d = (u_z d + w_p * u_p d + w_q * u_q d) / (1 + w_p + w_q).

Theorem output_between_repeated_words (n_d : nat) : layer_repeat n_d y_pq w_p y_pp w_q y_qq.
Proof using positive_p positive_q zpp zqq zpq.
  intros d _. rewrite zpp, zqq, zpq. field. repeat split; lra.
Qed.

Theorem a_spare_token_does_not_help :
  (forall d, (d < 2)%nat ->
    Rabs (y_pp d - delta d 0) <= e /\ Rabs (y_qq d - delta d 1) <= e /\ Rabs (y_pq d - 1) <= e) ->
  1 / 4 <= e.
Proof using positive_p positive_q zpp zqq zpq.
  intros E. set (a := (1 + 2 * w_p) / (2 * (1 + w_p + w_q))).
  assert (A0 : 0 <= a) by (apply Rlt_le, Rdiv_lt_0_compat; lra).
  assert (A1 : 1 - a = (1 + 2 * w_q) / (2 * (1 + w_p + w_q))) by (unfold a; field; lra).
  apply (one_head_misses_by_a_quarter (fun _ j => match j with 0%nat => a | _ => 1 - a end)
    (fun j => match j with 0%nat => y_pp | _ => y_qq end) (fun _ => y_pq) e); auto.
  - intros i d _ Hd. rewrite (output_between_repeated_words 2 d Hd). simpl.
    rewrite A1. unfold a. field. lra.
  - rewrite A1. apply Rlt_le, Rdiv_lt_0_compat; lra.
  - lra.
Qed.
End Spare.

(* The weights of the page: two heads of width 1. *)
Definition same (x y : nat) (yes no : R) : R := if Nat.eqb x y then yes else no.

(* A word is 0 (p) or 1 (q); the input at position i is the unit vector of word i. *)
Theorem two_heads_are_exact (word : nat -> nat) (Q K V S A O : nat -> nat -> nat -> R)
    (Y : nat -> nat -> R) :
  (word 0 < 2)%nat -> (word 1 < 2)%nat ->
  let X i b := delta (word i) b in
  index_query 2 2 1 2 Q X (fun _ _ _ => 1) ->
  index_key 2 2 1 2 K X (fun h b _ => same h b (ln 3 / 2) (- (ln 3 / 2))) ->
  index_value 2 2 1 2 V X (fun h b _ => same h b 1 (-1 / 3)) ->
  index_scores 2 2 2 1 S 1 Q K -> index_weights 2 2 2 A S -> index_heads 2 2 1 2 O A V ->
  index_output 2 2 2 1 Y O (fun h _ d => same h d (9 / 8) (3 / 8)) ->
  forall i d, (i < 2)%nat -> (d < 2)%nat ->
  Y i d = if Nat.eqb (word 0%nat) d || Nat.eqb (word 1%nat) d then 1 else 0.
Proof.
  intros W0 W1 X HQ HK HV HS HA HO HY i d Hi Hd.
  assert (q : forall h i, (h < 2)%nat -> (i < 2)%nat -> Q h i 0%nat = 1).
  { intros h i' Hh Hi'. rewrite HQ by lia. unfold X, delta. simpl.
    assert (C : (word i' = 0 \/ word i' = 1)%nat) by (destruct i' as [|[|]]; lia).
    destruct C as [-> | ->]; simpl; lra. }
  set (x := exp (ln 3 / 2)).
  assert (P : 0 < x) by apply exp_pos.
  assert (D : x * x = 3).
  { unfold x. rewrite <- exp_plus. replace (ln 3 / 2 + ln 3 / 2) with (ln 3) by lra.
    apply exp_ln; lra. }
  assert (M : exp (- (ln 3 / 2)) = x / 3).
  { rewrite exp_Ropp. fold x. apply Rmult_eq_reg_l with x; [| lra]. field_simplify; lra. }
  assert (k : forall h j, (h < 2)%nat -> (j < 2)%nat ->
    exp (S h i j) = same h (word j) x (x / 3) /\ V h j 0%nat = same h (word j) 1 (-1 / 3)).
  { intros h j Hh Hj. rewrite HS, HV by lia. simpl. rewrite q, HK, sqrt_1 by lia. simpl.
    unfold X, delta, same.
    assert (C : (word j = 0 \/ word j = 1)%nat) by (destruct j as [|[|]]; lia).
    destruct h as [|[|]]; [| | lia]; destruct C as [-> | ->]; simpl; split; try lra;
      first [rewrite <- M | unfold x]; f_equal; field. }
  rewrite HY by easy. simpl. rewrite !HO by lia. simpl. rewrite !HA by lia. simpl.
  rewrite !(fun h j p q => proj1 (k h j p q)), !(fun h j p q => proj2 (k h j p q)) by lia.
  assert (C0 : (word 0%nat = 0 \/ word 0%nat = 1)%nat) by lia.
  assert (C1 : (word 1%nat = 0 \/ word 1%nat = 1)%nat) by lia.
  unfold same. destruct C0 as [-> | ->], C1 as [-> | ->], d as [|[|]]; try lia; simpl; field; lra.
Qed.
