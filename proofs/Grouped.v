(* Grouped-query attention is multi-head attention with repeated KV heads; the gradient of a shared
   head is the sum over its group. Head h = k * G + g is query head g of group k. *)

From MHA Require Import Sums Statements.

Definition repeats (G : nat) (J : nat -> nat -> R) : Prop := forall h k, J h k = delta (h / G) k.

Lemma group_of (G k g : nat) : (g < G)%nat -> ((k * G + g) / G)%nat = k.
Proof. intros H. rewrite Nat.div_add_l, Nat.div_small by lia. lia. Qed.

Lemma head_below (n_k G k g : nat) : (k < n_k)%nat -> (g < G)%nat -> (k * G + g < n_k * G)%nat.
Proof. nia. Qed.

Theorem repeated_head (n_k G n_j n_a : nat) (J : nat -> nat -> R) (K K_N : nat -> nat -> nat -> R) :
  repeats G J -> gqa_repeat (n_k * G) n_j n_a n_k K_N J K ->
  forall k g j a, (k < n_k)%nat -> (g < G)%nat -> (j < n_j)%nat -> (a < n_a)%nat ->
  K_N (k * G + g)%nat j a = K k j a.
Proof.
  intros HJ H k g j a Hk Hg Hj Ha. rewrite H by (auto using head_below).
  rewrite (sum_ext _ _ (fun k' => delta k k' * K k' j a)).
  - now rewrite (sum_delta n_k k (fun k' => K k' j a)).
  - intros. rewrite HJ, group_of; easy.
Qed.

Theorem grouped_is_repeated (n_k G n_i n_j n_a n_c n_d : nat) (d_k : R) (J : nat -> nat -> R)
    (K V K_N V_N : nat -> nat -> nat -> R)
    (Q S A O W_O : nat -> nat -> nat -> nat -> R) (Q' S' A' O' W_O' : nat -> nat -> nat -> R)
    (Y Y' : nat -> nat -> R) :
  (* the grouped layer *)
  gqa_layer_1 n_k G n_i n_j n_a S d_k Q K -> gqa_layer_2 n_k G n_i n_j A S ->
  gqa_layer_3 n_k G n_i n_c n_j O A V -> gqa_layer_4 n_i n_d n_k G n_c Y O W_O ->
  (* the layer with as many KV heads as query heads, on repeated keys and values *)
  repeats G J -> gqa_repeat (n_k * G) n_j n_a n_k K_N J K ->
  gqa_repeat (n_k * G) n_j n_c n_k V_N J V ->
  index_scores (n_k * G) n_i n_j n_a S' d_k Q' K_N -> index_weights (n_k * G) n_i n_j A' S' ->
  index_heads (n_k * G) n_i n_c n_j O' A' V_N -> index_output n_i n_d (n_k * G) n_c Y' O' W_O' ->
  (* the same queries and output matrices, by one number of the head instead of two *)
  (forall k g i a, (g < G)%nat -> Q' (k * G + g)%nat i a = Q k g i a) ->
  (forall k g c d, (g < G)%nat -> W_O' (k * G + g)%nat c d = W_O k g c d) ->
  forall i d, (i < n_i)%nat -> (d < n_d)%nat -> Y' i d = Y i d.
Proof.
  intros HS HA HO HY HJ HK HV HS' HA' HO' HY' EQ EW i d Hi Hd.
  rewrite HY, HY', sum_blocks by easy.
  apply sum_ext; intros k Hk. apply sum_ext; intros g Hg. apply sum_ext; intros c Hc.
  pose proof (head_below n_k G k g Hk Hg) as Hh.
  assert (ES : forall j, (j < n_j)%nat -> S' (k * G + g)%nat i j = S k g i j).
  { intros j Hj. rewrite HS, HS' by easy. entries.
    rewrite EQ, (repeated_head n_k G n_j n_a J K K_N HJ HK); easy. }
  rewrite EW, HO, HO' by easy. f_equal. apply sum_ext; intros j Hj.
  rewrite (repeated_head n_k G n_j n_c J V V_N HJ HV), HA, HA', ES by easy.
  f_equal. f_equal. entries. now rewrite ES.
Qed.

Theorem gradient_of_a_shared_head (n_k G n_i n_j n_a : nat) (d_k : R)
    (dL_dK dL_dK_N Q' dL_dS' : nat -> nat -> nat -> R) (Q dL_dS : nat -> nat -> nat -> nat -> R) :
  grad_grouped n_k n_j n_a G n_i dL_dK d_k Q dL_dS ->
  grad_rest_3 (n_k * G) n_j n_a n_i dL_dK_N d_k Q' dL_dS' ->
  (forall k g i a, (g < G)%nat -> Q' (k * G + g)%nat i a = Q k g i a) ->
  (forall k g i j, (g < G)%nat -> dL_dS' (k * G + g)%nat i j = dL_dS k g i j) ->
  forall k j a, (k < n_k)%nat -> (j < n_j)%nat -> (a < n_a)%nat ->
  dL_dK k j a = sum G (fun g => dL_dK_N (k * G + g)%nat j a).
Proof.
  intros H H' EQ ES k j a Hk Hj Ha. rewrite H by easy. apply sum_ext; intros g Hg.
  rewrite H' by (auto using head_below). entries. now rewrite EQ, ES.
Qed.
