(* Multi-head latent attention: the absorbed form equals the expanded form. *)

From MHA Require Import Sums Statements.

Theorem absorbed_scores (n_h n_i n_j n_a n_n : nat) (S Q K Q_Z W_UK : nat -> nat -> nat -> R)
    (Z : nat -> nat -> R) :
  gqa_latent_1 n_h n_j n_a n_n K Z W_UK -> gqa_latent_2 n_h n_i n_n n_a Q_Z Q W_UK ->
  (forall h i j, S h i j = sum n_a (fun a => Q h i a * K h j a)) ->
  gqa_latent_3 n_h n_i n_j n_a n_n S Q K Q_Z Z.
Proof.
  intros HK HQ HS h i j Hh Hi Hj. split; [apply HS |].
  transitivity (sum n_a (fun a => sum n_n (fun n => Q h i a * W_UK h n a * Z j n))).
  - entries. rewrite HK, <- sum_l by easy. entries. ring.
  - rewrite sum_swap. entries. rewrite HQ, <- sum_r by easy. entries. ring.
Qed.

Theorem absorbed_values (n_h n_i n_c n_j n_n : nat) (O A W_UV : nat -> nat -> nat -> R)
    (Z : nat -> nat -> R) :
  (forall h i c, O h i c = sum n_j (fun j => A h i j * sum n_n (fun n => Z j n * W_UV h n c))) ->
  gqa_latent_values n_h n_i n_c n_j n_n O A Z W_UV.
Proof.
  intros H h i c Hh Hi Hc. split; [apply H |].
  transitivity (sum n_j (fun j => sum n_n (fun n => A h i j * Z j n * W_UV h n c))).
  - entries. rewrite <- sum_l. entries. ring.
  - rewrite sum_swap. entries. apply sum_r.
Qed.
