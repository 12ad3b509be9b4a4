(* Heads: splitting and combining, concatenating and adding, and their order. *)

From MHA Require Import Sums Statements.

Theorem splitting_and_combining_are_inverse (n_h n_i n_a : nat) (U : nat -> nat -> nat -> R)
    (Z Z' : nat -> nat -> R) :
  split_index n_h n_i n_a n_a U Z -> split_inverse n_i n_h n_a n_a Z' U ->
  forall i n, (i < n_i)%nat -> (n < n_h * n_a)%nat -> Z' i n = Z i n.
Proof.
  intros H H' i n Hi Hn.
  assert (n_a <> 0)%nat by (intros ->; lia).
  rewrite (Nat.div_mod n n_a), Nat.mul_comm by easy.
  assert ((n / n_a < n_h)%nat /\ (n mod n_a < n_a)%nat) as [A B].
  { split; [apply Nat.div_lt_upper_bound; lia | now apply Nat.mod_upper_bound]. }
  rewrite H', H by easy. reflexivity.
Qed.

Theorem concatenating_is_adding (n_h n_i n_c n_d : nat) (O W_O : nat -> nat -> nat -> R)
    (O_cat W : nat -> nat -> R) :
  (forall h i c, (h < n_h)%nat -> (c < n_c)%nat -> O_cat i (h * n_c + c)%nat = O h i c) ->
  (forall h c d, (h < n_h)%nat -> (c < n_c)%nat -> W (h * n_c + c)%nat d = W_O h c d) ->
  layer_concat n_h n_i n_c n_d (n_h * n_c) O W_O O_cat W.
Proof.
  intros H H' i d _ _. rewrite sum_blocks. entries. rewrite H, H' by easy. reflexivity.
Qed.

Theorem heads_can_be_permuted (n_h n_i n_c n_d : nat) (p q : nat -> nat)
    (O W_O : nat -> nat -> nat -> R) (Y Y' : nat -> nat -> R) :
  permutes n_h p q -> layer_sum n_i n_d n_h n_c Y O W_O ->
  layer_sum n_i n_d n_h n_c Y' (fun h => O (p h)) (fun h => W_O (p h)) ->
  forall i d, (i < n_i)%nat -> (d < n_d)%nat -> Y' i d = Y i d.
Proof.
  intros P H H' i d Hi Hd. rewrite H, H' by easy.
  apply (sum_permuted n_h p q (fun h => sum n_c (fun c => O h i c * W_O h c d)) P).
Qed.

(* The seven equations of the layer, written with an index for the head, and the same layer as the
   paper writes it: heads side by side, times one matrix. *)
Theorem the_layer_is_the_papers_layer (n_h n_i n_j n_a n_b n_c n_d : nat) (d_k : R)
    (Q K V S A O W_Q W_K W_V W_O : nat -> nat -> nat -> R) (X Y O_cat W : nat -> nat -> R) :
  index_query n_h n_i n_a n_b Q X W_Q -> index_key n_h n_j n_a n_b K X W_K ->
  index_value n_h n_j n_c n_b V X W_V -> index_scores n_h n_i n_j n_a S d_k Q K ->
  index_weights n_h n_i n_j A S -> index_heads n_h n_i n_c n_j O A V ->
  index_output n_i n_d n_h n_c Y O W_O ->
  (forall h i c, (h < n_h)%nat -> (c < n_c)%nat -> O_cat i (h * n_c + c)%nat =
    let q a := sum n_b (fun b => X i b * W_Q h b a) in
    let k j a := sum n_b (fun b => X j b * W_K h b a) in
    let s j := sum n_a (fun a => q a * k j a) / sqrt d_k in
    sum n_j (fun j => exp (s j) / sum n_j (fun j' => exp (s j'))
                      * sum n_b (fun b => X j b * W_V h b c))) ->
  (forall h c d, (h < n_h)%nat -> (c < n_c)%nat -> W (h * n_c + c)%nat d = W_O h c d) ->
  forall i d, (i < n_i)%nat -> (d < n_d)%nat ->
  Y i d = sum (n_h * n_c) (fun n => O_cat i n * W n d).
Proof.
  intros HQ HK HV HS HA HO HY Hcat HW i d Hi Hd.
  rewrite HY, sum_blocks by easy. apply sum_ext; intros h Hh. apply sum_ext; intros c Hc.
  rewrite HW, Hcat, HO by easy. simpl. f_equal. apply sum_ext; intros j Hj.
  assert (E : forall j', (j' < n_j)%nat -> S h i j' =
    sum n_a (fun a => sum n_b (fun b => X i b * W_Q h b a) * sum n_b (fun b => X j' b * W_K h b a))
    / sqrt d_k).
  { intros j' Hj'. rewrite HS, <- sum_div by easy. entries. rewrite HQ, HK by easy.
    unfold Rdiv; ring. }
  rewrite HA, HV, E by easy. f_equal. f_equal. entries. now rewrite E.
Qed.
