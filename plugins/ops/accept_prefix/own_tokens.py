"""Each column's own token and what drafts agree with one, in standard opset-24 ops: the text that bodies share.

``OWN_TOKENS`` reads the inputs of ``AcceptPrefix`` and leaves their lengths, clamped, and y int64 [B, E], what the
target itself says after each column. ``agreement`` tells which drafts are tolerated, ``EMISSION`` what a row emits.

A greedy lossless batch pays for one ArgMax: sampling is behind an If, the lossy policy behind another, and the sort
that top-k and top-p need behind a third, limited to the largest top_k when no row wants top_p alone. Cast targets:
1 float32, 6 int32, 7 int64, 9 bool, 11 float64, 12 uint32.
"""

from __future__ import annotations

_SORTED_FLOOR = """
      # Sort no further than the row that needs most. Ties past the k-th share its value, so a value says it all.
      k_off = Not(k_on)
      p_alone = And(p_on, k_off)
      need_k = Where(k_on, k, one)
      need = Where(p_alone, vocab, need_k)
      depth = ReduceMax<keepdims=1>(need)
      z_down, unused_ids = TopK<axis=2, largest=1, sorted=1>(z, depth)

      last = Min(k, depth)
      kth_1 = Sub(last, one)
      kth_3 = Unsqueeze(kth_1, axes_12)
      kth_at = Expand(kth_3, columns_shape)
      kth = GatherElements<axis=2>(z_down, kth_at)
      k_on_3 = Unsqueeze(k_on, axes_12)
      floor_of_k = Where(k_on_3, kth, floor_min_p)
      floor_k = Max(floor_min_p, floor_of_k)

      # The mass is renormalised over what min-p and top-k left.
      off = Sub(z, z_best)
      w_32 = Exp(off)
      w_all = Cast<to=11>(w_32)
      left = GreaterOrEqual(z, floor_k)
      w_left = Where(left, w_all, zero_d)
      mass = ReduceSum<keepdims=1>(w_left, two)
      p_1 = Cast<to=11>(top_p)
      p_3 = Unsqueeze(p_1, axes_12)
      goal_p = Mul(mass, p_3)
      down_off = Sub(z_down, z_best)
      down_exp = Exp(down_off)
      w_down_all = Cast<to=11>(down_exp)
      down_left = GreaterOrEqual(z_down, floor_k)
      w_down = Where(down_left, w_down_all, zero_d)
      before = CumSum<exclusive=1>(w_down, two)
      short = Less(before, goal_p)
      prefix = Where(short, z_down, z_best)
      floor_of_p = ReduceMin<keepdims=1>(prefix, two)
      p_on_3 = Unsqueeze(p_on, axes_12)
      floor_p = Where(p_on_3, floor_of_p, floor_k)
      floor_sorted = Max(floor_k, floor_p)
"""


def _scramble(name: str) -> str:
    """Two rounds of ((x >> 16) ^ x) * c and a last shift: ``<name>_0`` uint32 -> ``<name>``."""
    lines = []
    for i in (0, 1):
        lines += [
            f'{name}_s{i} = BitShift<direction = "RIGHT">({name}_{i}, sixteen)',
            f"{name}_x{i} = BitwiseXor({name}_s{i}, {name}_{i})",
            f"{name}_w{i} = Cast<to=7>({name}_x{i})",
            f"{name}_p{i} = Mul({name}_w{i}, scrambler)",
            f"{name}_{i + 1} = Cast<to=12>({name}_p{i})",
        ]
    lines += [
        f'{name}_s2 = BitShift<direction = "RIGHT">({name}_2, sixteen)',
        f"{name} = BitwiseXor({name}_s2, {name}_2)",
    ]
    return "\n    ".join(lines)


_SAMPLED = f"""
    z = Div(scores, heat_3)
    z_best = GatherElements<axis=2>(z, best)
    min_p_in = Clip(min_p, zero_f, one_f)
    ln_min_p = Log(min_p_in)
    ln_min_p_3 = Unsqueeze(ln_min_p, axes_12)
    floor_min_p = Add(z_best, ln_min_p_3)

    top_k_64 = Cast<to=7>(top_k)
    k_positive = Greater(top_k_64, zero)
    k_cuts = Less(top_k_64, vocab)
    k_wanted = And(k_positive, k_cuts)
    k_on = And(draws, k_wanted)
    k_or_1 = Max(top_k_64, one)
    k = Min(k_or_1, vocab)
    p_wanted = Less(top_p, one_f)
    p_on = And(draws, p_wanted)
    sorts = Or(k_on, p_on)
    sorts_i = Cast<to=6>(sorts)
    any_sorts_i = ReduceMax<keepdims=0>(sorts_i)
    any_sorts = Cast<to=9>(any_sorts_i)
    floor = If (any_sorts) <then_branch = sorted_floor () => (floor_sorted) {{{_SORTED_FLOOR}    }},
      else_branch = plain_floor () => (floor_plain) {{
      floor_plain = Identity(floor_min_p)
    }}>

    # Noise from (uniform, token id). Products are taken in int64, where they fit, and cut to 32 bits.
    below_1 = Constant<value_float = 0.99999994>()
    bits_24 = Constant<value_float = 16777216.0>()
    u_in = Clip(uniform, zero_f, below_1)
    u_24 = Mul(u_in, bits_24)
    key_0 = Cast<to=12>(u_24)
    {_scramble("key")}
    key_each = Unsqueeze(key, two)
    vocab_0 = Squeeze(vocab, zero)
    last_id_excluded = Add(vocab_0, step)
    id_64 = Range(step, last_id_excluded, step)
    id_0 = Cast<to=12>(id_64)
    {_scramble("id")}
    mixed_0 = BitwiseXor(id, key_each)
    {_scramble("mixed")}
    hashed = Cast<to=1>(mixed)
    unit = Constant<value_float = 2.3283064365386963e-10>()
    least = Constant<value_float = 1.1641532182693481e-10>()
    t_raw = Mul(hashed, unit)
    t = Clip(t_raw, least, below_1)
    ln_t = Log(t)
    waiting = Neg(ln_t)
    ln_waiting = Log(waiting)
    raced = Sub(z, ln_waiting)
    kept = GreaterOrEqual(z, floor)
    never = Log(zero_f)
    score = Where(kept, raced, never)
    y_drawn = ArgMax<axis=2, keepdims=0>(score)
    hot_2 = Unsqueeze(hot, one)
    y_sampled = Where(hot_2, y_drawn, y_greedy)
"""

OWN_TOKENS = f"""
  zero = Constant<value_ints = [0]>()
  one = Constant<value_ints = [1]>()
  two = Constant<value_ints = [2]>()
  minus_one = Constant<value_ints = [-1]>()
  axes_12 = Constant<value_ints = [1, 2]>()
  zero_f = Constant<value_float = 0.0>()
  one_f = Constant<value_float = 1.0>()
  zero_d = Constant<value = double {{0.0}}>()
  sixteen = Constant<value = uint32 {{16}}>()
  scrambler = Constant<value_int = 73244475>()
  width = Shape<start=1, end=2>(input_ids)
  columns = Shape<start=1, end=2>(logits)
  vocab = Shape<start=2, end=3>(logits)
  rows_columns = Shape<start=0, end=2>(logits)
  columns_shape = Concat<axis=0>(rows_columns, one)
  first_column = Constant<value_int = 0>()
  step = Constant<value_int = 1>()
  stop = Squeeze(columns, zero)
  j = Range(first_column, stop, step)

  # Lengths, clamped to what the tensors hold; a forced row has no drafts. All are [B].
  window_64 = Cast<to=7>(window_len)
  window_0 = Max(window_64, zero)
  window = Min(window_0, width)
  live = Greater(window, zero)
  forced = GreaterOrEqual(forced_next, zero)
  drafts_64 = Cast<to=7>(draft_len)
  last_column = Sub(columns, one)
  last_valid = Sub(window, one)
  drafts_most = Min(drafts_64, last_column, last_valid)
  drafts_some = Max(drafts_most, zero)
  drafts = Where(forced, zero, drafts_some)
  drafts_2 = Unsqueeze(drafts, one)

  # y: the target's own token for every column.
  scores = Cast<to=1>(logits)
  best = ArgMax<axis=2, keepdims=1>(scores)
  y_greedy = Squeeze(best, two)
  hot = Greater(temperature, zero_f)
  heat = Where(hot, temperature, one_f)
  heat_3 = Unsqueeze(heat, axes_12)
  unforced = Not(forced)
  drawn_rows = And(hot, live)
  draws = And(drawn_rows, unforced)
  draws_i = Cast<to=6>(draws)
  any_draws_i = ReduceMax<keepdims=0>(draws_i)
  any_draws = Cast<to=9>(any_draws_i)
  y_own = If (any_draws) <then_branch = sampled () => (y_sampled) {{{_SAMPLED}  }},
    else_branch = greedy () => (y_plain) {{
    y_plain = Identity(y_greedy)
  }}>
  forced_2 = Unsqueeze(forced, one)
  forced_next_2 = Unsqueeze(forced_next, one)
  y = Where(forced_2, forced_next_2, y_own)
"""


def agreement(judged: str) -> str:
    """The text that leaves ``agrees`` bool [B, E]: ``same``, or where a row is lossy near enough.

    ``d`` int64 [B, E] are the drafts; ``judged`` finds ``best_score`` and ``d_score`` [B, E], the
    largest of the scores that a draft is held against and that of the draft, whose id is ``d_in``.
    """
    return f"""
  # The lossy policy, before any filter: z(d) >= max z + ln(1 - tolerance).
  lossy_1 = Greater(tolerance, zero_f)
  lossy_i = Cast<to=6>(lossy_1)
  any_lossy_i = ReduceMax<keepdims=0>(lossy_i)
  any_lossy = Cast<to=9>(any_lossy_i)
  agrees = If (any_lossy) <then_branch = lossy () => (agrees_or_near) {{
    lossy = Unsqueeze(lossy_1, one)
    most_tolerant = Constant<value_float = 0.999999>()
    tolerance_in = Clip(tolerance, zero_f, most_tolerant)
    strictness = Sub(one_f, tolerance_in)
    ln_strictness = Log(strictness)
    ln_strictness_2 = Unsqueeze(ln_strictness, one)
    heat_2 = Unsqueeze(heat, one)
    last_token = Sub(vocab, one)
    d_0 = Max(d, zero)
    d_in = Min(d_0, last_token)
{judged}
    best_z = Div(best_score, heat_2)
    tolerance_floor = Add(best_z, ln_strictness_2)
    d_z = Div(d_score, heat_2)
    near = GreaterOrEqual(d_z, tolerance_floor)
    is_id = Equal(d, d_in)
    near_id = And(near, is_id)
    tolerated = And(near_id, lossy)
    agrees_or_near = Or(same, tolerated)
  }},
    else_branch = lossless () => (agrees_exactly) {{
    agrees_exactly = Identity(same)
  }}>
"""


# Of accepted int64 [B, 1], how many drafts, and emitted int64 [B, E].
EMISSION = """
  live_2 = Unsqueeze(live, one)
  tokens_64 = Where(live_2, emitted, minus_one)
  tokens = Cast<to=6>(tokens_64)
  accepted_1 = Squeeze(accepted, one)
  count = Add(accepted_1, one)
  num_tokens_64 = Where(live, count, zero)
  num_tokens = Cast<to=6>(num_tokens_64)
"""
