(* Causal attention, the KV cache, and prefill by chunks. *)

From MHA Require Import Sums.

(* Attention of one query over n keys, of which it sees some; a row that sees none gives zero. *)
Definition attend (n : nat) (sees : nat -> bool) (s : nat -> R) (v : nat -> nat -> R) (c : nat) : R :=
  let weight j := if sees j then exp (s j) else 0 in
  if existsb sees (seq 0 n) then sum n (fun j => weight j * v j c) / sum n weight else 0.

(* Row i sees the keys up to its own. *)
Definition causal (i j : nat) : bool := Nat.leb j i.
Definition all (j : nat) : bool := true.

Lemma existsb_causal (n i : nat) : (i < n)%nat -> existsb (causal i) (seq 0 n) = true.
Proof.
  intros H. apply existsb_exists. exists 0%nat. rewrite in_seq. unfold causal; simpl. lia.
Qed.

(* Keys that no mask lets through may be cut off, and the mask with them. *)
Lemma sum_causal (n m i : nat) (f : nat -> R) :
  (i < n)%nat -> (n <= m)%nat ->
  sum m (fun j => (if causal i j then f j else 0)) = sum n (fun j => (if causal i j then f j else 0)).
Proof.
  intros Hi H. replace m with (n + (m - n))%nat by lia. rewrite sum_split, Rplus_comm.
  rewrite sum_zero; [lra |]. intros j _. unfold causal.
  now rewrite (proj2 (Nat.leb_gt _ _)) by lia.
Qed.

Lemma attend_prefix (n m i : nat) (s s' : nat -> R) (v v' : nat -> nat -> R) (c : nat) :
  (i < n)%nat -> (n <= m)%nat ->
  (forall j, (j <= i)%nat -> s j = s' j /\ v j c = v' j c) ->
  attend n (causal i) s v c = attend m (causal i) s' v' c.
Proof.
  intros Hi Hm E. unfold attend. rewrite !existsb_causal by lia.
  assert (D : sum n (fun j => if causal i j then exp (s j) else 0)
            = sum m (fun j => if causal i j then exp (s' j) else 0)).
  { rewrite (sum_causal n m) by easy. entries. unfold causal in *.
    destruct (Nat.leb_spec i0 i); [now rewrite (proj1 (E i0 H0)) | easy]. }
  assert (N : sum n (fun j => (if causal i j then exp (s j) else 0) * v j c)
            = sum m (fun j => (if causal i j then exp (s' j) else 0) * v' j c)).
  { transitivity (sum m (fun j => if causal i j then exp (s' j) * v' j c else 0)).
    - rewrite (sum_causal n m) by easy. entries. unfold causal in *.
      destruct (Nat.leb_spec i0 i); [| lra].
      now rewrite (proj1 (E i0 H0)), (proj2 (E i0 H0)).
    - entries. destruct (causal i i0); lra. }
  now rewrite N, D.
Qed.

Section Decoding.
(* Token j has input x j; its key and value come from it alone, and so does its query. *)
Variables (T : nat) (input : Type) (x : nat -> input).
Variables (key value query : input -> nat -> R) (product : (nat -> R) -> (nat -> R) -> R).

(* Row i of causal attention over the whole sequence. *)
Definition full_row (i : nat) : nat -> R :=
  attend T (causal i) (fun j => product (query (x i)) (key (x j))) (fun j => value (x j)).

(* The cache is the list of the keys and values of the tokens so far. *)
Definition cache := list ((nat -> R) * (nat -> R)).
Definition append (kept : cache) (token : input) : cache := kept ++ [(key token, value token)].
Fixpoint cache_of (t : nat) : cache :=
  match t with 0%nat => [] | S t' => append (cache_of t') (x t') end.

Definition zero : nat -> R := fun _ => 0.
Definition attend_cache (kept : cache) (sees : nat -> bool) (q : nat -> R) : nat -> R :=
  attend (length kept) sees (fun j => product q (fst (nth j kept (zero, zero))))
         (fun j => snd (nth j kept (zero, zero))).

(* One step: append the token's key and value, then attend over the whole cache, without a mask. *)
Definition decode_step (kept : cache) (token : input) : nat -> R :=
  attend_cache (append kept token) all (query token).

Lemma length_cache (t : nat) : length (cache_of t) = t.
Proof. induction t; simpl; [easy |]. unfold append. rewrite app_length, IHt; simpl; lia. Qed.

Lemma nth_cache (t j : nat) : (j < t)%nat -> nth j (cache_of t) (zero, zero) = (key (x j), value (x j)).
Proof.
  induction t; intros H; [lia |]. simpl; unfold append.
  destruct (Nat.eq_dec j t) as [-> | N].
  - rewrite app_nth2, length_cache, Nat.sub_diag by (rewrite length_cache; lia). easy.
  - rewrite app_nth1 by (rewrite length_cache; lia). apply IHt; lia.
Qed.

Lemma all_is_causal (t c : nat) (s : nat -> R) (v : nat -> nat -> R) :
  attend (t + 1) all s v c = attend (t + 1) (causal t) s v c.
Proof.
  assert (E : forall j, (j < t + 1)%nat -> causal t j = true).
  { intros j Hj. unfold causal. apply Nat.leb_le; lia. }
  unfold attend. rewrite existsb_causal by lia.
  replace (existsb all (seq 0 (t + 1))) with true by (rewrite Nat.add_1_r; easy).
  cbv zeta.
  rewrite (sum_ext _ (fun j => if all j then exp (s j) else 0) (fun j => if causal t j then exp (s j) else 0))
    by (intros; rewrite E; easy).
  rewrite (sum_ext _ (fun j => (if all j then exp (s j) else 0) * v j c)
    (fun j => (if causal t j then exp (s j) else 0) * v j c)) by (intros; rewrite E; easy).
  easy.
Qed.

Theorem decoding_is_the_last_row (t c : nat) :
  (t < T)%nat -> decode_step (cache_of t) (x t) c = full_row t c.
Proof.
  intros H. unfold decode_step, full_row, attend_cache.
  change (append (cache_of t) (x t)) with (cache_of (S t)). rewrite length_cache.
  replace (S t) with (t + 1)%nat by lia. rewrite all_is_causal.
  apply attend_prefix; try lia.
  intros j Hj. rewrite nth_cache by lia. easy.
Qed.

(* A chunk of m tokens from position p: all its keys are appended first, and row i of the chunk
   sees the cache up to position p + i. *)
Definition prefill_chunk (p m i : nat) : nat -> R :=
  attend_cache (cache_of (p + m)) (causal (p + i)) (query (x (p + i))).

Theorem chunked_prefill_is_prefill (p m i c : nat) :
  (i < m)%nat -> (p + m <= T)%nat -> prefill_chunk p m i c = full_row (p + i) c.
Proof.
  intros Hi Hm. unfold prefill_chunk, full_row, attend_cache. rewrite length_cache.
  apply attend_prefix; try lia.
  intros j Hj. rewrite nth_cache by lia. easy.
Qed.

End Decoding.

Theorem a_row_that_sees_nothing (n c : nat) (s : nat -> R) (v : nat -> nat -> R) :
  attend n (fun _ => false) s v c = 0.
Proof. unfold attend. induction (seq 0 n); easy. Qed.
