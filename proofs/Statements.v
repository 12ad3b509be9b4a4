(* Made from the book's displayed equations by proofs/check.py --write. *)

From MHA Require Import Sums.

(* further-inference/gqa-latent *)
Definition gqa_latent_1 (n_h n_j n_a n_n : nat) (K : nat -> nat -> nat -> R)
    (Z : nat -> nat -> R) (W_UK : nat -> nat -> nat -> R) : Prop :=
  forall h j a : nat, (h < n_h)%nat -> (j < n_j)%nat -> (a < n_a)%nat ->
  K h j a = sum n_n (fun n => Z j n * W_UK h n a).

Definition gqa_latent_2 (n_h n_i n_n n_a : nat)
    (Q_Z Q W_UK : nat -> nat -> nat -> R) : Prop :=
  forall h i n : nat, (h < n_h)%nat -> (i < n_i)%nat -> (n < n_n)%nat ->
  Q_Z h i n = sum n_a (fun a => Q h i a * W_UK h n a).

Definition gqa_latent_3 (n_h n_i n_j n_a n_n : nat)
    (S Q K Q_Z : nat -> nat -> nat -> R) (Z : nat -> nat -> R) : Prop :=
  forall h i j : nat, (h < n_h)%nat -> (i < n_i)%nat -> (j < n_j)%nat ->
  S h i j = sum n_a (fun a => Q h i a * K h j a) /\
  sum n_a (fun a => Q h i a * K h j a) = sum n_n (fun n => Q_Z h i n * Z j n).

(* further-inference/gqa-latent-values *)
Definition gqa_latent_values (n_h n_i n_c n_j n_n : nat)
    (O A : nat -> nat -> nat -> R) (Z : nat -> nat -> R)
    (W_UV : nat -> nat -> nat -> R) : Prop :=
  forall h i c : nat, (h < n_h)%nat -> (i < n_i)%nat -> (c < n_c)%nat ->
  O h i c = sum n_j (fun j => A h i j * sum n_n (fun n => Z j n * W_UV h n c)) /\
  sum n_j (fun j => A h i j * sum n_n (fun n => Z j n * W_UV h n c)) = sum n_n (fun n => sum n_j (fun j => A h i j * Z j n) * W_UV h n c).

(* gradients/grad-grouped *)
Definition grad_grouped (n_k n_j n_a n_g n_i : nat)
    (dL_dK : nat -> nat -> nat -> R) (d_k : R)
    (Q dL_dS : nat -> nat -> nat -> nat -> R) : Prop :=
  forall k j a : nat, (k < n_k)%nat -> (j < n_j)%nat -> (a < n_a)%nat ->
  dL_dK k j a = sum n_g (fun g => sum n_i (fun i => 1 / sqrt d_k * Q k g i a * dL_dS k g i j)).

(* gradients/grad-queries *)
Definition grad_queries (n_h n_i n_a n_j : nat)
    (dL_dQ : nat -> nat -> nat -> R) (d_k : R)
    (K dL_dS : nat -> nat -> nat -> R) : Prop :=
  forall h i a : nat, (h < n_h)%nat -> (i < n_i)%nat -> (a < n_a)%nat ->
  dL_dQ h i a = sum n_j (fun j => 1 / sqrt d_k * K h j a * dL_dS h i j).

(* gradients/grad-recompute *)
Definition grad_recompute_1 (n_h n_i n_j : nat) (lambda_ : nat -> nat -> R)
    (S : nat -> nat -> nat -> R) : Prop :=
  forall h i : nat, (h < n_h)%nat -> (i < n_i)%nat ->
  lambda_ h i = ln (sum n_j (fun j => exp (S h i j))).

Definition grad_recompute_2 (n_h n_i n_j : nat) (A S : nat -> nat -> nat -> R)
    (lambda_ : nat -> nat -> R) : Prop :=
  forall h i j : nat, (h < n_h)%nat -> (i < n_i)%nat -> (j < n_j)%nat ->
  A h i j = exp (S h i j - lambda_ h i).

(* gradients/grad-rest *)
Definition grad_rest_1 (n_h n_c n_d n_i : nat)
    (dL_dW_O O : nat -> nat -> nat -> R) (dL_dY : nat -> nat -> R) : Prop :=
  forall h c d : nat, (h < n_h)%nat -> (c < n_c)%nat -> (d < n_d)%nat ->
  dL_dW_O h c d = sum n_i (fun i => O h i c * dL_dY i d).

Definition grad_rest_2 (n_h n_i n_c n_d : nat)
    (dL_dO W_O : nat -> nat -> nat -> R) (dL_dY : nat -> nat -> R) : Prop :=
  forall h i c : nat, (h < n_h)%nat -> (i < n_i)%nat -> (c < n_c)%nat ->
  dL_dO h i c = sum n_d (fun d => W_O h c d * dL_dY i d).

Definition grad_rest_3 (n_h n_j n_a n_i : nat)
    (dL_dK : nat -> nat -> nat -> R) (d_k : R)
    (Q dL_dS : nat -> nat -> nat -> R) : Prop :=
  forall h j a : nat, (h < n_h)%nat -> (j < n_j)%nat -> (a < n_a)%nat ->
  dL_dK h j a = sum n_i (fun i => 1 / sqrt d_k * Q h i a * dL_dS h i j).

Definition grad_rest_4 (n_h n_b n_a n_j : nat)
    (dL_dW_K : nat -> nat -> nat -> R) (X : nat -> nat -> R)
    (dL_dK : nat -> nat -> nat -> R) : Prop :=
  forall h b a : nat, (h < n_h)%nat -> (b < n_b)%nat -> (a < n_a)%nat ->
  dL_dW_K h b a = sum n_j (fun j => X j b * dL_dK h j a).

Definition grad_rest_5 (n_h n_b n_c n_j : nat)
    (dL_dW_V : nat -> nat -> nat -> R) (X : nat -> nat -> R)
    (dL_dV : nat -> nat -> nat -> R) : Prop :=
  forall h b c : nat, (h < n_h)%nat -> (b < n_b)%nat -> (c < n_c)%nat ->
  dL_dW_V h b c = sum n_j (fun j => X j b * dL_dV h j c).

Definition grad_rest_6 (n_i n_b n_h n_a n_c : nat) (dL_dX : nat -> nat -> R)
    (W_Q dL_dQ W_K dL_dK W_V dL_dV : nat -> nat -> nat -> R) : Prop :=
  forall i b : nat, (i < n_i)%nat -> (b < n_b)%nat ->
  dL_dX i b = sum n_h (fun h => sum n_a (fun a => W_Q h b a * dL_dQ h i a)) + sum n_h (fun h => sum n_a (fun a => W_K h b a * dL_dK h i a)) + sum n_h (fun h => sum n_c (fun c => W_V h b c * dL_dV h i c)).

(* gradients/grad-row-products *)
Definition grad_row_products (n_h n_i n_j n_c : nat) (r : nat -> nat -> R)
    (A dL_dA V dL_dO O : nat -> nat -> nat -> R) : Prop :=
  forall h i : nat, (h < n_h)%nat -> (i < n_i)%nat ->
  r h i = sum n_j (fun j => A h i j * dL_dA h i j) /\
  sum n_j (fun j => A h i j * dL_dA h i j) = sum n_j (fun j => sum n_c (fun c => A h i j * V h j c * dL_dO h i c)) /\
  sum n_j (fun j => sum n_c (fun c => A h i j * V h j c * dL_dO h i c)) = sum n_c (fun c => O h i c * dL_dO h i c).

(* gradients/grad-row-sum *)
Definition grad_row_sum (n_h n_i n_j : nat) (dL_dS : nat -> nat -> nat -> R)
    (r : nat -> nat -> R) (A : nat -> nat -> nat -> R) : Prop :=
  forall h i : nat, (h < n_h)%nat -> (i < n_i)%nat ->
  sum n_j (fun j => dL_dS h i j) = r h i - sum n_j (fun j => A h i j * r h i).

(* gradients/grad-scores *)
Definition grad_scores (n_h n_i n_j : nat)
    (dL_dS A dL_dA : nat -> nat -> nat -> R) (r : nat -> nat -> R) : Prop :=
  forall h i j : nat, (h < n_h)%nat -> (i < n_i)%nat -> (j < n_j)%nat ->
  dL_dS h i j = A h i j * (dL_dA h i j - r h i).

(* gradients/grad-softmax *)
Definition grad_softmax_1 (n_j : nat) (dL_dS A dL_dA : nat -> R) (r : R)
    : Prop :=
  forall j : nat, (j < n_j)%nat ->
  dL_dS j = A j * (dL_dA j - r).

Definition grad_softmax_2 (n_j_prime : nat) (r : R) (A dL_dA : nat -> R)
    : Prop :=
  r = sum n_j_prime (fun j_prime => A j_prime * dL_dA j_prime).

(* gradients/grad-softmax-jacobian *)
Definition grad_softmax_jacobian (n_j : nat) (dA_dS : nat -> nat -> R)
    (A : nat -> R) : Prop :=
  forall j_prime j : nat, (j_prime < n_j)%nat -> (j < n_j)%nat ->
  dA_dS j_prime j = A j_prime * (delta j_prime j - A j).

(* gradients/grad-values *)
Definition grad_values (n_h n_j n_c n_i : nat)
    (dL_dV A dL_dO : nat -> nat -> nat -> R) : Prop :=
  forall h j c : nat, (h < n_h)%nat -> (j < n_j)%nat -> (c < n_c)%nat ->
  dL_dV h j c = sum n_i (fun i => A h i j * dL_dO h i c).

(* gradients/grad-w-q *)
Definition grad_w_q (n_h n_b n_a n_i : nat) (dL_dW_Q : nat -> nat -> nat -> R)
    (X : nat -> nat -> R) (dL_dQ : nat -> nat -> nat -> R) : Prop :=
  forall h b a : nat, (h < n_h)%nat -> (b < n_b)%nat -> (a < n_a)%nat ->
  dL_dW_Q h b a = sum n_i (fun i => X i b * dL_dQ h i a).

(* gradients/grad-weights *)
Definition grad_weights (n_h n_i n_j n_c : nat)
    (dL_dA V dL_dO : nat -> nat -> nat -> R) : Prop :=
  forall h i j : nat, (h < n_h)%nat -> (i < n_i)%nat -> (j < n_j)%nat ->
  dL_dA h i j = sum n_c (fun c => V h j c * dL_dO h i c).

(* grouped-query-attention/gqa-layer *)
Definition gqa_layer_1 (n_k n_g n_i n_j n_a : nat)
    (S : nat -> nat -> nat -> nat -> R) (H : R)
    (Q : nat -> nat -> nat -> nat -> R) (K : nat -> nat -> nat -> R) : Prop :=
  forall k g i j : nat, (k < n_k)%nat -> (g < n_g)%nat -> (i < n_i)%nat -> (j < n_j)%nat ->
  S k g i j = sum n_a (fun a => 1 / sqrt H * Q k g i a * K k j a).

Definition gqa_layer_2 (n_k n_g n_i n_j : nat)
    (A S : nat -> nat -> nat -> nat -> R) : Prop :=
  forall k g i j : nat, (k < n_k)%nat -> (g < n_g)%nat -> (i < n_i)%nat -> (j < n_j)%nat ->
  A k g i j = exp (S k g i j) / sum n_j (fun j_prime => exp (S k g i j_prime)).

Definition gqa_layer_3 (n_k n_g n_i n_c n_j : nat)
    (O A : nat -> nat -> nat -> nat -> R) (V : nat -> nat -> nat -> R)
    : Prop :=
  forall k g i c : nat, (k < n_k)%nat -> (g < n_g)%nat -> (i < n_i)%nat -> (c < n_c)%nat ->
  O k g i c = sum n_j (fun j => A k g i j * V k j c).

Definition gqa_layer_4 (n_i n_d n_k n_g n_c : nat) (Y : nat -> nat -> R)
    (O W_O : nat -> nat -> nat -> nat -> R) : Prop :=
  forall i d : nat, (i < n_i)%nat -> (d < n_d)%nat ->
  Y i d = sum n_k (fun k => sum n_g (fun g => sum n_c (fun c => O k g i c * W_O k g c d))).

(* grouped-query-attention/gqa-repeat *)
Definition gqa_repeat (n_h n_j n_a n_k : nat) (K_N : nat -> nat -> nat -> R)
    (J : nat -> nat -> R) (K : nat -> nat -> nat -> R) : Prop :=
  forall h j a : nat, (h < n_h)%nat -> (j < n_j)%nat -> (a < n_a)%nat ->
  K_N h j a = sum n_k (fun k => J h k * K k j a).

(* index-notation/index-heads *)
Definition index_heads (n_h n_i n_c n_j : nat)
    (O A V : nat -> nat -> nat -> R) : Prop :=
  forall h i c : nat, (h < n_h)%nat -> (i < n_i)%nat -> (c < n_c)%nat ->
  O h i c = sum n_j (fun j => A h i j * V h j c).

(* index-notation/index-key *)
Definition index_key (n_h n_j n_a n_b : nat) (K : nat -> nat -> nat -> R)
    (X : nat -> nat -> R) (W_K : nat -> nat -> nat -> R) : Prop :=
  forall h j a : nat, (h < n_h)%nat -> (j < n_j)%nat -> (a < n_a)%nat ->
  K h j a = sum n_b (fun b => X j b * W_K h b a).

(* index-notation/index-output *)
Definition index_output (n_i n_d n_h n_c : nat) (Y : nat -> nat -> R)
    (O W_O : nat -> nat -> nat -> R) : Prop :=
  forall i d : nat, (i < n_i)%nat -> (d < n_d)%nat ->
  Y i d = sum n_h (fun h => sum n_c (fun c => O h i c * W_O h c d)).

(* index-notation/index-query *)
Definition index_query (n_h n_i n_a n_b : nat) (Q : nat -> nat -> nat -> R)
    (X : nat -> nat -> R) (W_Q : nat -> nat -> nat -> R) : Prop :=
  forall h i a : nat, (h < n_h)%nat -> (i < n_i)%nat -> (a < n_a)%nat ->
  Q h i a = sum n_b (fun b => X i b * W_Q h b a).

(* index-notation/index-scores *)
Definition index_scores (n_h n_i n_j n_a : nat) (S : nat -> nat -> nat -> R)
    (d_k : R) (Q K : nat -> nat -> nat -> R) : Prop :=
  forall h i j : nat, (h < n_h)%nat -> (i < n_i)%nat -> (j < n_j)%nat ->
  S h i j = sum n_a (fun a => 1 / sqrt d_k * Q h i a * K h j a).

(* index-notation/index-value *)
Definition index_value (n_h n_j n_c n_b : nat) (V : nat -> nat -> nat -> R)
    (X : nat -> nat -> R) (W_V : nat -> nat -> nat -> R) : Prop :=
  forall h j c : nat, (h < n_h)%nat -> (j < n_j)%nat -> (c < n_c)%nat ->
  V h j c = sum n_b (fun b => X j b * W_V h b c).

(* index-notation/index-weights *)
Definition index_weights (n_h n_i n_j : nat) (A S : nat -> nat -> nat -> R)
    : Prop :=
  forall h i j : nat, (h < n_h)%nat -> (i < n_i)%nat -> (j < n_j)%nat ->
  A h i j = exp (S h i j) / sum n_j (fun j_prime => exp (S h i j_prime)).

(* many-devices/dev-merge *)
Definition dev_merge_1 (n_i n_n : nat) (lambda_ : nat -> R)
    (lambda_part : nat -> nat -> R) : Prop :=
  forall i : nat, (i < n_i)%nat ->
  lambda_ i = ln (sum n_n (fun n => exp (lambda_part n i))).

Definition dev_merge_2 (n_i n_c n_n : nat) (O lambda_part : nat -> nat -> R)
    (lambda_ : nat -> R) (O_part : nat -> nat -> nat -> R) : Prop :=
  forall i c : nat, (i < n_i)%nat -> (c < n_c)%nat ->
  O i c = sum n_n (fun n => exp (lambda_part n i - lambda_ i) * O_part n i c).

(* one-head-or-two/layer-concat *)
Definition layer_concat (n_h n_i n_c n_d n_n : nat)
    (O W_O : nat -> nat -> nat -> R) (O_widehat W : nat -> nat -> R) : Prop :=
  forall i d : nat, (i < n_i)%nat -> (d < n_d)%nat ->
  sum n_h (fun h => sum n_c (fun c => O h i c * W_O h c d)) = sum n_n (fun n => O_widehat i n * W n d).

(* one-head-or-two/layer-hull *)
Definition layer_hull_1 (n_i n_d n_j : nat) (Y A u : nat -> nat -> R)
    : Prop :=
  forall i d : nat, (i < n_i)%nat -> (d < n_d)%nat ->
  Y i d = sum n_j (fun j => A i j * u j d).

Definition layer_hull_2 (n_j n_d n_b n_c : nat)
    (u X W_V W_O : nat -> nat -> R) : Prop :=
  forall j d : nat, (j < n_j)%nat -> (d < n_d)%nat ->
  u j d = sum n_b (fun b => sum n_c (fun c => X j b * W_V b c * W_O c d)).

(* one-head-or-two/layer-repeat *)
Definition layer_repeat (n_d : nat) (y_pq : nat -> R) (w_p : R)
    (y_pp : nat -> R) (w_q : R) (y_qq : nat -> R) : Prop :=
  forall d : nat, (d < n_d)%nat ->
  y_pq d = ((1 + 2 * w_p) * y_pp d + (1 + 2 * w_q) * y_qq d) / (2 * (1 + w_p + w_q)).

(* one-head-or-two/layer-sum *)
Definition layer_sum (n_i n_d n_h n_c : nat) (Y : nat -> nat -> R)
    (O W_O : nat -> nat -> nat -> R) : Prop :=
  forall i d : nat, (i < n_i)%nat -> (d < n_d)%nat ->
  Y i d = sum n_h (fun h => sum n_c (fun c => O h i c * W_O h c d)).

(* online-softmax/hw-fade *)
Definition hw_fade (n_i n_j : nat) (m m_prime : nat -> R)
    (S : nat -> nat -> R) : Prop :=
  forall i j : nat, (i < n_i)%nat -> (j < n_j)%nat ->
  exp (m i - m_prime i) * exp (S i j - m i) = exp (S i j - m_prime i).

(* online-softmax/hw-finish *)
Definition hw_finish_1 (n_i n_c : nat) (O o : nat -> nat -> R)
    (ell : nat -> R) : Prop :=
  forall i c : nat, (i < n_i)%nat -> (c < n_c)%nat ->
  O i c = o i c / ell i.

Definition hw_finish_2 (n_i : nat) (lambda_ m ell : nat -> R) : Prop :=
  forall i : nat, (i < n_i)%nat ->
  lambda_ i = m i + ln (ell i).

(* online-softmax/hw-known *)
Definition hw_known_1 (n_i n_j : nat) (ell : nat -> R) (S : nat -> nat -> R)
    (m : nat -> R) : Prop :=
  forall i : nat, (i < n_i)%nat ->
  ell i = sum n_j (fun j => exp (S i j - m i)).

Definition hw_known_2 (n_i n_c n_j : nat) (o S : nat -> nat -> R)
    (m : nat -> R) (V : nat -> nat -> R) : Prop :=
  forall i c : nat, (i < n_i)%nat -> (c < n_c)%nat ->
  o i c = sum n_j (fun j => exp (S i j - m i) * V j c).

(* online-softmax/hw-merge *)
Definition hw_merge_1 (n_i : nat) (ell m_1 m ell_1 m_2 ell_2 : nat -> R)
    : Prop :=
  forall i : nat, (i < n_i)%nat ->
  ell i = exp (m_1 i - m i) * ell_1 i + exp (m_2 i - m i) * ell_2 i.

Definition hw_merge_2 (n_i n_c : nat) (o : nat -> nat -> R) (m_1 m : nat -> R)
    (o_1 : nat -> nat -> R) (m_2 : nat -> R) (o_2 : nat -> nat -> R) : Prop :=
  forall i c : nat, (i < n_i)%nat -> (c < n_c)%nat ->
  o i c = exp (m_1 i - m i) * o_1 i c + exp (m_2 i - m i) * o_2 i c.

(* online-softmax/hw-row *)
Definition hw_row (n_i n_c n_j : nat) (O S : nat -> nat -> R) (m : nat -> R)
    (V : nat -> nat -> R) : Prop :=
  forall i c : nat, (i < n_i)%nat -> (c < n_c)%nat ->
  O i c = sum n_j (fun j => exp (S i j - m i) * V j c) / sum n_j (fun j_prime => exp (S i j_prime - m i)).

(* online-softmax/hw-update *)
Definition hw_update_1 (n_i n_j : nat) (ell_prime m m_prime ell : nat -> R)
    (S_n : nat -> nat -> R) : Prop :=
  forall i : nat, (i < n_i)%nat ->
  ell_prime i = exp (m i - m_prime i) * ell i + sum n_j (fun j => exp (S_n i j - m_prime i)).

Definition hw_update_2 (n_i n_c n_j : nat) (o_prime : nat -> nat -> R)
    (m m_prime : nat -> R) (o S_n V_n : nat -> nat -> R) : Prop :=
  forall i c : nat, (i < n_i)%nat -> (c < n_c)%nat ->
  o_prime i c = exp (m i - m_prime i) * o i c + sum n_j (fun j => exp (S_n i j - m_prime i) * V_n j c).

(* online-softmax/hw-weight *)
Definition hw_weight_1 (n_i : nat) (m ell m_1 ell_1 m_2 ell_2 : nat -> R)
    : Prop :=
  forall i : nat, (i < n_i)%nat ->
  exp (m i) * ell i = exp (m_1 i) * ell_1 i + exp (m_2 i) * ell_2 i.

Definition hw_weight_2 (n_i n_c : nat) (m : nat -> R) (o : nat -> nat -> R)
    (m_1 : nat -> R) (o_1 : nat -> nat -> R) (m_2 : nat -> R)
    (o_2 : nat -> nat -> R) : Prop :=
  forall i c : nat, (i < n_i)%nat -> (c < n_c)%nat ->
  exp (m i) * o i c = exp (m_1 i) * o_1 i c + exp (m_2 i) * o_2 i c.

(* position/position-permuted *)
Definition position_permuted_1 (n_i n_a n_i_prime : nat)
    (S_bar : nat -> nat -> R) (d_k : R) (Q_bar K_bar Pi S : nat -> nat -> R)
    : Prop :=
  forall i j : nat, (i < n_i)%nat -> (j < n_i)%nat ->
  S_bar i j = 1 / sqrt d_k * sum n_a (fun a => Q_bar i a * K_bar j a) /\
  1 / sqrt d_k * sum n_a (fun a => Q_bar i a * K_bar j a) = sum n_i_prime (fun i_prime => sum n_i_prime (fun j_prime => Pi i i_prime * Pi j j_prime * S i_prime j_prime)).

Definition position_permuted_2 (n_i n_i_prime : nat)
    (A_bar Pi A : nat -> nat -> R) : Prop :=
  forall i j : nat, (i < n_i)%nat -> (j < n_i)%nat ->
  A_bar i j = sum n_i_prime (fun i_prime => sum n_i_prime (fun j_prime => Pi i i_prime * Pi j j_prime * A i_prime j_prime)).

Definition position_permuted_3 (n_i n_c n_j n_i_prime : nat)
    (O_bar A_bar V_bar Pi O : nat -> nat -> R) : Prop :=
  forall i c : nat, (i < n_i)%nat -> (c < n_c)%nat ->
  O_bar i c = sum n_j (fun j => A_bar i j * V_bar j c) /\
  sum n_j (fun j => A_bar i j * V_bar j c) = sum n_i_prime (fun i_prime => Pi i i_prime * O i_prime c).

(* position/position-relative *)
Definition position_relative (n_i n_j n_p : nat) (S : nat -> nat -> R)
    (d_k : R) (Q_0 K_0 Q_1 K_1 : nat -> nat -> R)
    (Delta : nat -> nat -> nat -> R) : Prop :=
  forall i j : nat, (i < n_i)%nat -> (j < n_j)%nat ->
  S i j = 1 / sqrt d_k * sum n_p (fun p => (Q_0 i p * K_0 j p + Q_1 i p * K_1 j p) * cos (Delta i j p) + (Q_0 i p * K_1 j p - Q_1 i p * K_0 j p) * sin (Delta i j p)).

(* position/position-rotate *)
Definition position_rotate_1 (n_i n_p : nat)
    (Q_tilde_0 Q_0 varphi Q_1 : nat -> nat -> R) : Prop :=
  forall i p : nat, (i < n_i)%nat -> (p < n_p)%nat ->
  Q_tilde_0 i p = Q_0 i p * cos (varphi i p) - Q_1 i p * sin (varphi i p).

Definition position_rotate_2 (n_i n_p : nat)
    (Q_tilde_1 Q_0 varphi Q_1 : nat -> nat -> R) : Prop :=
  forall i p : nat, (i < n_i)%nat -> (p < n_p)%nat ->
  Q_tilde_1 i p = Q_0 i p * sin (varphi i p) + Q_1 i p * cos (varphi i p).

(* scaled-attention/sdpa-average *)
Definition sdpa_average (n_i n_j n_c n_b : nat) (A V X W_V : nat -> nat -> R)
    : Prop :=
  forall i c : nat, (i < n_i)%nat -> (c < n_c)%nat ->
  sum n_j (fun j => A i j * V j c) = sum n_j (fun j => A i j * sum n_b (fun b => X j b * W_V b c)) /\
  sum n_j (fun j => A i j * sum n_b (fun b => X j b * W_V b c)) = sum n_b (fun b => sum n_j (fun j => A i j * X j b) * W_V b c).

(* scaled-attention/sdpa-output *)
Definition sdpa_output (n_i n_c n_j : nat) (O A V : nat -> nat -> R) : Prop :=
  forall i c : nat, (i < n_i)%nat -> (c < n_c)%nat ->
  O i c = sum n_j (fun j => A i j * V j c).

(* scaled-attention/sdpa-scores *)
Definition sdpa_scores (n_i n_j n_a : nat) (S : nat -> nat -> R) (d_k : R)
    (Q K : nat -> nat -> R) : Prop :=
  forall i j : nat, (i < n_i)%nat -> (j < n_j)%nat ->
  S i j = 1 / sqrt d_k * sum n_a (fun a => Q i a * K j a).

(* scaled-attention/sdpa-shift *)
Definition sdpa_shift (n_i n_j : nat) (S : nat -> nat -> R) (m : nat -> R)
    : Prop :=
  forall i j : nat, (i < n_i)%nat -> (j < n_j)%nat ->
  exp (S i j) / sum n_j (fun j_prime => exp (S i j_prime)) = exp (S i j - m i) / sum n_j (fun j_prime => exp (S i j_prime - m i)).

(* scaled-attention/sdpa-softmax *)
Definition sdpa_softmax (n_i n_j : nat) (A S : nat -> nat -> R) : Prop :=
  forall i j : nat, (i < n_i)%nat -> (j < n_j)%nat ->
  A i j = exp (S i j) / sum n_j (fun j_prime => exp (S i j_prime)).

(* sinks/sink-denominator *)
Definition sink_denominator (n_h n_i n_c n_j : nat)
    (O S V : nat -> nat -> nat -> R) (S_0 : nat -> nat -> R) : Prop :=
  forall h i c : nat, (h < n_h)%nat -> (i < n_i)%nat -> (c < n_c)%nat ->
  O h i c = sum n_j (fun j => exp (S h i j) * V h j c) / (exp (S_0 h i) + sum n_j (fun j_prime => exp (S h i j_prime))).

(* split-and-combine/split-index *)
Definition split_index (n_h n_i n_a H : nat) (U : nat -> nat -> nat -> R)
    (Z : nat -> nat -> R) : Prop :=
  forall h i a : nat, (h < n_h)%nat -> (i < n_i)%nat -> (a < n_a)%nat ->
  U h i a = Z i (h * H + a)%nat.

(* split-and-combine/split-inverse *)
Definition split_inverse (n_i n_h n_a H : nat) (Z : nat -> nat -> R)
    (U : nat -> nat -> nat -> R) : Prop :=
  forall i h a : nat, (i < n_i)%nat -> (h < n_h)%nat -> (a < n_a)%nat ->
  Z i (h * H + a)%nat = U h i a.
