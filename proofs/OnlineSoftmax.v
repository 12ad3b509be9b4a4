(* The online softmax. What is known of some keys is their largest score m, the sum l of their
   weights exp(s - m), and the sum o of their values, each times its weight. States merge in any
   order and grouping, and the merged state gives attention over all the keys. *)

From MHA Require Import Sums Statements.
From Coq Require Import FunctionalExtensionality.

Inductive state := Empty | Seen (m l : R) (o : nat -> R).

Definition merge (a b : state) : state :=
  match a, b with
  | Empty, _ => b
  | _, Empty => a
  | Seen m1 l1 o1, Seen m2 l2 o2 =>
      let m := Rmax m1 m2 in
      Seen m (exp (m1 - m) * l1 + exp (m2 - m) * l2)
             (fun c => exp (m1 - m) * o1 c + exp (m2 - m) * o2 c)
  end.

(* A row without a visible key has output zero. *)
Definition finish (a : state) (c : nat) : R :=
  match a with
  | Empty => 0
  | Seen m l o => o c / l
  end.

Lemma seen_equal (m m' l l' : R) (o o' : nat -> R) :
  m = m' -> l = l' -> (forall c, o c = o' c) -> Seen m l o = Seen m' l' o'.
Proof. intros -> -> H. f_equal. now apply functional_extensionality. Qed.

Theorem merge_commutative (a b : state) : merge a b = merge b a.
Proof.
  destruct a, b; simpl; try easy.
  rewrite (Rmax_comm m0 m). apply seen_equal; intros; ring.
Qed.

Theorem merge_associative (a b c : state) : merge a (merge b c) = merge (merge a b) c.
Proof.
  destruct a as [|m1 l1 o1], b as [|m2 l2 o2], c as [|m3 l3 o3]; simpl; try easy.
  rewrite Rmax_assoc. set (m := Rmax (Rmax m1 m2) m3).
  apply seen_equal; intros; [easy | |]; exps.
Qed.

Theorem merge_unit (a : state) : merge Empty a = a /\ merge a Empty = a.
Proof. now destruct a. Qed.

(* A key: whether the mask lets the query see it, its score, and its value. *)
Record key := Key { visible : bool; score : R; value : nat -> R }.

Definition weight (k : key) : R := if visible k then exp (score k) else 0.
Fixpoint total (keys : list key) (f : key -> R) : R :=
  match keys with [] => 0 | k :: rest => f k + total rest f end.

(* Softmax attention of one query over all keys at once. *)
Definition attention (keys : list key) (c : nat) : R :=
  if existsb visible keys
  then total keys (fun k => weight k * value k c) / total keys weight
  else 0.

Definition of_key (k : key) : state :=
  if visible k then Seen (score k) 1 (value k) else Empty.
Definition of_block (keys : list key) : state := fold_right (fun k => merge (of_key k)) Empty keys.

(* A plan of work: blocks, merged in any grouping. A loop over blocks, a ring of devices, split-K
   and the pages of a paged cache are all plans. *)
Inductive plan := Block (keys : list key) | Merge (first second : plan).
Fixpoint keys_of (p : plan) : list key :=
  match p with Block keys => keys | Merge a b => keys_of a ++ keys_of b end.
Fixpoint run (p : plan) : state :=
  match p with Block keys => of_block keys | Merge a b => merge (run a) (run b) end.

(* What the state of some keys is. *)
Definition describes (a : state) (keys : list key) : Prop :=
  match a with
  | Empty => existsb visible keys = false
  | Seen m l o =>
      existsb visible keys = true /\ exp m * l = total keys weight /\
      forall c, exp m * o c = total keys (fun k => weight k * value k c)
  end.

Lemma total_app (a b : list key) (f : key -> R) : total (a ++ b) f = total a f + total b f.
Proof. induction a; simpl; [lra | rewrite IHa; lra]. Qed.

Lemma total_invisible (keys : list key) (f : key -> R) :
  existsb visible keys = false -> total keys (fun k => weight k * f k) = 0.
Proof.
  unfold weight. induction keys; simpl; intros H; [easy |].
  apply orb_false_iff in H as [-> H]. rewrite (IHkeys H). lra.
Qed.

Lemma total_weight (keys : list key) : total keys weight = total keys (fun k => weight k * 1).
Proof. induction keys; simpl; [easy | rewrite IHkeys; lra]. Qed.

Lemma merge_describes (a b : state) (ka kb : list key) :
  describes a ka -> describes b kb -> describes (merge a b) (ka ++ kb).
Proof.
  destruct a as [|m1 l1 o1], b as [|m2 l2 o2]; simpl; rewrite existsb_app.
  - intros -> ->; easy.
  - intros Ha (-> & L & O). rewrite Ha; repeat split; [rewrite total_app, L | intros c; rewrite total_app, <- O];
      rewrite ?(total_weight ka), total_invisible; auto; lra.
  - intros (-> & L & O) Hb. rewrite orb_true_l; repeat split; [rewrite total_app, L | intros c; rewrite total_app, <- O];
      rewrite ?(total_weight kb), total_invisible; auto; lra.
  - intros (-> & L1 & O1) (-> & L2 & O2).
    repeat split; [| intros c]; rewrite total_app, <- ?L1, <- ?L2, <- ?O1, <- ?O2; exps.
Qed.

Lemma key_describes (k : key) : describes (of_key k) [k].
Proof.
  unfold of_key, describes, weight; simpl.
  destruct (visible k); simpl; repeat split; intros; lra.
Qed.

Lemma run_describes (p : plan) : describes (run p) (keys_of p).
Proof.
  induction p; simpl; [| now apply merge_describes].
  induction keys; simpl; [easy |].
  apply (merge_describes _ _ [a] keys); [apply key_describes | easy].
Qed.

Lemma finish_describes (a : state) (keys : list key) (c : nat) :
  describes a keys -> finish a c = attention keys c.
Proof.
  unfold attention. destruct a as [|m l o]; simpl; [now intros -> |].
  intros (-> & L & O). rewrite <- O, <- L. unfold Rdiv.
  assert (E : exp m <> 0) by (apply Rgt_not_eq, exp_pos).
  rewrite Rinv_mult.
  replace (exp m * o c * (/ exp m * / l)) with (o c * / l * (exp m * / exp m)) by ring.
  rewrite Rinv_r by easy; ring.
Qed.

(* Some entries are the same list in another order. *)
Lemma total_permutation (a b : list key) (f : key -> R) :
  Permutation a b -> total a f = total b f.
Proof. induction 1; simpl; lra. Qed.

Lemma attention_permutation (a b : list key) (c : nat) :
  Permutation a b -> attention a c = attention b c.
Proof.
  intros P. unfold attention. rewrite !(total_permutation a b) by easy.
  replace (existsb visible a) with (existsb visible b); [easy |].
  induction P; simpl; rewrite ?IHP; try easy; [| congruence].
  now rewrite !orb_assoc, (orb_comm (visible x)).
Qed.

Theorem any_tiling_any_order (p : plan) (keys : list key) (c : nat) :
  Permutation (keys_of p) keys -> finish (run p) c = attention keys c.
Proof.
  intros P. rewrite <- (attention_permutation _ _ c P).
  apply finish_describes, run_describes.
Qed.

Theorem no_visible_key (p : plan) (c : nat) :
  existsb visible (keys_of p) = false ->
  run p = Empty /\ finish (run p) c = 0 /\ forall q, run (Merge p q) = run q.
Proof.
  intros H. pose proof (run_describes p) as D. simpl.
  destruct (run p); simpl in D; [easy | destruct D; congruence].
Qed.

(* The equations of the page. *)

Theorem fade_is_exact (n_i n_j : nat) (m m' : nat -> R) (S : nat -> nat -> R) :
  hw_fade n_i n_j m m' S.
Proof. intros i j _ _. exps. Qed.

Theorem update_is_exact (n_i n_c n_old n_new : nat) (m m' l l' : nat -> R)
    (o o' S V S_n V_n S_all V_all : nat -> nat -> R) :
  hw_known_1 n_i n_old l S m -> hw_known_2 n_i n_c n_old o S m V ->
  hw_update_1 n_i n_new l' m m' l S_n -> hw_update_2 n_i n_c n_new o' m m' o S_n V_n ->
  (forall i j, (j < n_old)%nat -> S_all i j = S i j /\ V_all j i = V j i) ->
  (forall i j, S_all i (n_old + j)%nat = S_n i j /\ V_all (n_old + j)%nat i = V_n j i) ->
  hw_known_1 n_i (n_old + n_new) l' S_all m' /\
  hw_known_2 n_i n_c (n_old + n_new) o' S_all m' V_all.
Proof.
  intros L O L' O' Old New. split.
  - intros i Hi. rewrite L', L, sum_split, <- sum_l by easy.
    f_equal; apply sum_ext; intros j Hj;
      [rewrite (proj1 (Old i j Hj)) | rewrite (proj1 (New i j))]; exps.
  - intros i c Hi Hc. rewrite O', O, sum_split, <- sum_l by easy.
    f_equal; apply sum_ext; intros j Hj;
      [rewrite (proj1 (Old i j Hj)), (proj2 (Old c j Hj)) |
       rewrite (proj1 (New i j)), (proj2 (New c j))]; exps.
Qed.

Theorem finish_is_attention (n_i n_c n_j : nat) (m l : nat -> R) (O o S V : nat -> nat -> R) :
  hw_known_1 n_i n_j l S m -> hw_known_2 n_i n_c n_j o S m V -> hw_finish_1 n_i n_c O o l ->
  hw_row n_i n_c n_j O S m V.
Proof. intros L K F i c Hi Hc. now rewrite F, K, L. Qed.

Theorem merge_keeps_weights (n_i n_c : nat) (m m_1 m_2 l l_1 l_2 : nat -> R)
    (o o_1 o_2 : nat -> nat -> R) :
  hw_merge_1 n_i l m_1 m l_1 m_2 l_2 -> hw_merge_2 n_i n_c o m_1 m o_1 m_2 o_2 ->
  hw_weight_1 n_i m l m_1 l_1 m_2 l_2 /\ hw_weight_2 n_i n_c m o m_1 o_1 m_2 o_2.
Proof.
  intros L O; split; [intros i Hi; rewrite L | intros i c Hi Hc; rewrite O]; auto; exps.
Qed.

(* Devices that hold parts of the keys send their outputs and the logarithms of their sums. *)
Theorem devices_merge_exactly (n_n n_i n_c n_j : nat) (lam : nat -> R) (lam_part : nat -> nat -> R)
    (O : nat -> nat -> R) (O_part S V : nat -> nat -> nat -> R) :
  (0 < n_n)%nat -> (0 < n_j)%nat ->
  (forall n i, lam_part n i = ln (sum n_j (fun j => exp (S n i j)))) ->
  (forall n i c, O_part n i c =
    sum n_j (fun j => exp (S n i j) * V n j c) / sum n_j (fun j => exp (S n i j))) ->
  dev_merge_1 n_i n_n lam lam_part -> dev_merge_2 n_i n_c n_n O lam_part lam O_part ->
  forall i c, (i < n_i)%nat -> (c < n_c)%nat ->
  O i c = sum n_n (fun n => sum n_j (fun j => exp (S n i j) * V n j c))
        / sum n_n (fun n => sum n_j (fun j => exp (S n i j))).
Proof.
  intros Hn Hj L P M1 M2 i c Hi Hc.
  assert (E : forall n, exp (lam_part n i) = sum n_j (fun j => exp (S n i j))).
  { intros n. rewrite L, exp_ln; [easy | now apply exp_sum_pos]. }
  assert (F : exp (lam i) = sum n_n (fun n => sum n_j (fun j => exp (S n i j)))).
  { rewrite M1, exp_ln by (easy || now apply exp_sum_pos). apply sum_ext; auto. }
  rewrite M2, <- F by easy. rewrite <- sum_div. apply sum_ext; intros n Hn'.
  rewrite P, <- E. exps.
Qed.
