(* Finite sums of real numbers over the indices 0 … n-1, and Kronecker's delta. *)

From Coq Require Export Reals Lra Lia List Permutation Arith Bool.
Export ListNotations.
Open Scope R_scope.

Fixpoint sum (n : nat) (f : nat -> R) : R :=
  match n with
  | 0%nat => 0
  | S k => sum k f + f k
  end.

Definition delta (i j : nat) : R := if Nat.eqb i j then 1 else 0.

Lemma sum_ext (n : nat) (f g : nat -> R) :
  (forall i, (i < n)%nat -> f i = g i) -> sum n f = sum n g.
Proof. induction n; simpl; intros H; [easy | rewrite IHn, H; auto]. Qed.

Lemma sum_plus (n : nat) (f g : nat -> R) :
  sum n (fun i => f i + g i) = sum n f + sum n g.
Proof. induction n; simpl; [lra | rewrite IHn; lra]. Qed.

Lemma sum_minus (n : nat) (f g : nat -> R) :
  sum n (fun i => f i - g i) = sum n f - sum n g.
Proof. induction n; simpl; [lra | rewrite IHn; lra]. Qed.

Lemma sum_l (n : nat) (c : R) (f : nat -> R) : sum n (fun i => c * f i) = c * sum n f.
Proof. induction n; simpl; [lra | rewrite IHn; lra]. Qed.

Lemma sum_r (n : nat) (c : R) (f : nat -> R) : sum n (fun i => f i * c) = sum n f * c.
Proof. induction n; simpl; [lra | rewrite IHn; lra]. Qed.

Lemma sum_div (n : nat) (c : R) (f : nat -> R) : sum n (fun i => f i / c) = sum n f / c.
Proof. apply sum_r. Qed.

Lemma sum_zero (n : nat) (f : nat -> R) :
  (forall i, (i < n)%nat -> f i = 0) -> sum n f = 0.
Proof. induction n; simpl; intros H; [easy | rewrite IHn, H; auto; lra]. Qed.

Lemma sum_swap (n m : nat) (f : nat -> nat -> R) :
  sum n (fun i => sum m (fun j => f i j)) = sum m (fun j => sum n (fun i => f i j)).
Proof.
  induction n; simpl; [now rewrite sum_zero |].
  now rewrite IHn, <- sum_plus.
Qed.

Lemma sum_pos (n : nat) (f : nat -> R) :
  (0 < n)%nat -> (forall i, (i < n)%nat -> 0 < f i) -> 0 < sum n f.
Proof.
  induction n; intros Hn H; [lia |]. simpl.
  destruct n; [simpl; specialize (H 0%nat); lra || (rewrite Rplus_0_l; apply H; lia) |].
  apply Rplus_lt_0_compat; [apply IHn; auto; lia | auto].
Qed.

Lemma sum_split (n m : nat) (f : nat -> R) :
  sum (n + m) f = sum n f + sum m (fun i => f (n + i)%nat).
Proof.
  induction m; [rewrite Nat.add_0_r; simpl; lra |].
  rewrite Nat.add_succ_r; simpl; rewrite IHm; lra.
Qed.

(* A sum over n * m positions is a sum over n blocks of m. *)
Lemma sum_blocks (n m : nat) (f : nat -> R) :
  sum (n * m) f = sum n (fun h => sum m (fun c => f (h * m + c)%nat)).
Proof.
  induction n; [easy |]. replace (S n * m)%nat with (n * m + m)%nat by lia.
  rewrite sum_split, IHn; reflexivity.
Qed.

Lemma sum_delta (n i : nat) (f : nat -> R) :
  (i < n)%nat -> sum n (fun k => delta i k * f k) = f i.
Proof.
  unfold delta. induction n; intros H; [lia |]. simpl.
  destruct (Nat.eqb_spec i n) as [-> | E].
  - rewrite sum_zero; [lra |]. intros k Hk.
    destruct (Nat.eqb_spec n k); [lia | lra].
  - rewrite IHn by lia. lra.
Qed.

Lemma delta_sym (i j : nat) : delta i j = delta j i.
Proof. unfold delta; now rewrite Nat.eqb_sym. Qed.

(* A permutation of the indices below n, with its inverse. *)
Definition permutes (n : nat) (p q : nat -> nat) : Prop :=
  forall i, (i < n)%nat -> (p i < n)%nat /\ (q i < n)%nat /\ q (p i) = i /\ p (q i) = i.

Lemma sum_permuted (n : nat) (p q : nat -> nat) (f : nat -> R) :
  permutes n p q -> sum n (fun i => f (p i)) = sum n f.
Proof.
  intros H.
  transitivity (sum n (fun i => sum n (fun k => delta (p i) k * f k))).
  { apply sum_ext; intros i Hi. now rewrite sum_delta by apply (H i Hi). }
  rewrite sum_swap. apply sum_ext; intros k Hk.
  transitivity (sum n (fun i => delta (q k) i * f k)).
  - apply sum_ext; intros i Hi. f_equal. unfold delta.
    destruct (H i Hi) as (_ & _ & E & _), (H k Hk) as (_ & _ & _ & F).
    destruct (Nat.eqb_spec (p i) k), (Nat.eqb_spec (q k) i); congruence.
  - rewrite (sum_delta n (q k) (fun _ => f k)); [easy | apply (H k Hk)].
Qed.

Lemma exp_sum_pos (n : nat) (s : nat -> R) : (0 < n)%nat -> 0 < sum n (fun j => exp (s j)).
Proof. intros; apply sum_pos; intros; [easy | apply exp_pos]. Qed.

(* A chain of definitions is used below a sum: rewrite each entry by what defines it. *)
Ltac entries := repeat (apply sum_ext; intros).

(* Equalities between products and quotients of exponentials. *)
Ltac exps :=
  unfold Rminus; rewrite ?exp_plus, ?exp_Ropp; field;
  repeat split; try (apply Rgt_not_eq, exp_pos).
