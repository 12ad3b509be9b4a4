(* Without positions, attention commutes with permutations of its tokens; with RoPE its scores
   depend on differences of positions alone. *)

From MHA Require Import Sums Statements.

(* The matrix of a permutation p: row i has its one at column p i. *)
Definition matrix_of (p : nat -> nat) (i i' : nat) : R := delta (p i) i'.

Lemma permuted_twice (n : nat) (p q : nat -> nat) (M : nat -> nat -> R) (i j : nat) :
  permutes n p q -> (i < n)%nat -> (j < n)%nat ->
  sum n (fun i' => sum n (fun j' => matrix_of p i i' * matrix_of p j j' * M i' j')) = M (p i) (p j).
Proof.
  intros P Hi Hj. unfold matrix_of.
  rewrite <- (sum_delta n (p i) (fun i' => M i' (p j))) by apply (P i Hi).
  entries. rewrite <- (sum_delta n (p j) (fun j' => M i0 j')) by apply (P j Hj).
  rewrite <- sum_l. entries. ring.
Qed.

Theorem attention_commutes_with_permutations (n n_a n_c : nat) (d_k : R) (p q : nat -> nat)
    (Q K V S A O Q_p K_p V_p S_p A_p O_p : nat -> nat -> R) :
  permutes n p q ->
  sdpa_scores n n n_a S d_k Q K -> sdpa_softmax n n A S -> sdpa_output n n_c n O A V ->
  (forall i a, Q_p i a = Q (p i) a) -> (forall i a, K_p i a = K (p i) a) ->
  (forall i c, V_p i c = V (p i) c) ->
  sdpa_scores n n n_a S_p d_k Q_p K_p -> sdpa_softmax n n A_p S_p -> sdpa_output n n_c n O_p A_p V_p ->
  position_permuted_1 n n_a n S_p d_k Q_p K_p (matrix_of p) S /\
  position_permuted_2 n n A_p (matrix_of p) A /\
  position_permuted_3 n n_c n n O_p A_p V_p (matrix_of p) O.
Proof.
  intros P HS HA HO EQ EK EV HS' HA' HO'.
  assert (B : forall i, (i < n)%nat -> (p i < n)%nat) by (intros i Hi; apply (P i Hi)).
  assert (ES : forall i j, (i < n)%nat -> (j < n)%nat -> S_p i j = S (p i) (p j)).
  { intros i j Hi Hj. rewrite HS', HS by auto.
    f_equal. entries. now rewrite EQ, EK. }
  assert (EA : forall i j, (i < n)%nat -> (j < n)%nat -> A_p i j = A (p i) (p j)).
  { intros i j Hi Hj. rewrite HA', HA, ES by auto.
    f_equal. rewrite <- (sum_permuted n p q (fun j' => exp (S (p i) j')) P).
    entries. now rewrite ES. }
  repeat split.
  - now apply HS'.
  - rewrite permuted_twice with (q := q) by easy. rewrite <- ES, HS' by easy. reflexivity.
  - intros i j Hi Hj. rewrite permuted_twice with (q := q) by easy. now apply EA.
  - now apply HO'.
  - unfold matrix_of. rewrite (sum_delta n (p i) (fun i' => O i' c)) by apply (P i H).
    rewrite HO by auto.
    rewrite <- (sum_permuted n p q (fun j => A (p i) j * V j c) P).
    entries. now rewrite EA, EV.
Qed.

(* RoPE turns pair p of the features at position i by the angle i * omega p. *)
Definition angle (omega : nat -> R) (i p : nat) : R := INR i * omega p.

Theorem rope_scores_depend_on_differences (n_i n_j n_p : nat) (d_k : R) (omega : nat -> R)
    (Q_0 Q_1 K_0 K_1 Q_r0 Q_r1 K_r0 K_r1 S : nat -> nat -> R) :
  position_rotate_1 n_i n_p Q_r0 Q_0 (angle omega) Q_1 ->
  position_rotate_2 n_i n_p Q_r1 Q_0 (angle omega) Q_1 ->
  position_rotate_1 n_j n_p K_r0 K_0 (angle omega) K_1 ->
  position_rotate_2 n_j n_p K_r1 K_0 (angle omega) K_1 ->
  (forall i j, (i < n_i)%nat -> (j < n_j)%nat ->
    S i j = 1 / sqrt d_k * sum n_p (fun p => Q_r0 i p * K_r0 j p + Q_r1 i p * K_r1 j p)) ->
  position_relative n_i n_j n_p S d_k Q_0 K_0 Q_1 K_1 (fun i j p => (INR i - INR j) * omega p).
Proof.
  intros HQ0 HQ1 HK0 HK1 HS i j Hi Hj. rewrite HS by easy. f_equal. apply sum_ext; intros p Hp.
  rewrite HQ0, HQ1, HK0, HK1 by easy. unfold angle.
  replace ((INR i - INR j) * omega p) with (INR i * omega p - INR j * omega p) by ring.
  rewrite cos_minus, sin_minus. ring.
Qed.

(* So moving both by the same number of positions changes no score. *)
Theorem rope_ignores_a_common_shift (n_p t : nat) (d_k : R) (omega : nat -> R)
    (q_0 q_1 k_0 k_1 : nat -> R) (S : nat -> nat -> R) (n : nat) :
  position_relative n n n_p S d_k (fun _ => q_0) (fun _ => k_0) (fun _ => q_1) (fun _ => k_1)
    (fun i j p => (INR i - INR j) * omega p) ->
  forall i j, (i + t < n)%nat -> (j + t < n)%nat -> S (i + t)%nat (j + t)%nat = S i j.
Proof.
  intros H i j Hi Hj. rewrite !H by lia. f_equal. entries.
  replace (INR (i + t) - INR (j + t)) with (INR i - INR j) by (rewrite !plus_INR; ring).
  reflexivity.
Qed.
