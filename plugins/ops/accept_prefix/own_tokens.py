"""Each column's own token and the drafts that agree with it, in standard opset-24 ops, shared by several bodies.

``OWN_TOKENS`` reads the inputs of ``AcceptPrefix`` and computes their clamped lengths and y int64 [B, E], the target's
own token after each column. ``agreement`` decides which drafts are tolerated, ``EMISSION`` which tokens a row emits.

A greedy lossless batch only pays for one ArgMax: sampling is behind one If, the lossy policy behind another, and the
sort for top-k and top-p behind a third, limited to the largest top_k unless a row uses top_p alone. Cast targets:
1 float32, 6 int32, 7 int64, 9 bool, 11 float64.
"""

from __future__ import annotations

SCRAMBLER = 0x45D9F3B  # same as in the reference

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


def _cut(name: str, of: str, by: str) -> str:
    """Divide a non-negative integer by a power of two: ``<name>`` is the remainder, ``<name>_up`` the quotient."""
    return f"""
    {name}_up = Div({of}, {by})
    {name}_whole = Mul({name}_up, {by})
    {name} = Sub({of}, {name}_whole)"""


def _xor(name: str, a: str, b: str) -> str:
    """a ^ b -> ``<name>``: int32 below 2**16, byte by byte through ``xor_of_bytes``."""
    return f"""{_cut(f"{name}_a", a, "byte_32")}{_cut(f"{name}_b", b, "byte_32")}
    {name}_row = Mul({name}_a, byte_32)
    {name}_at = Add({name}_row, {name}_b)
    {name}_at_up = Add({name}_a_whole, {name}_b_up)
    {name}_0 = Gather(xor_of_bytes, {name}_at)
    {name}_1 = Gather(xor_of_bytes, {name}_at_up)
    {name}_2 = Mul({name}_1, byte_32)
    {name} = Add({name}_2, {name}_0)"""


def _halves(name: str, of: str) -> str:
    """The low 16 bits of an int64 and the next 16, ``<name>_low`` and ``<name>_high``; 0 for a NaN's cast."""
    return f"""{_cut(f"{name}_l", of, "n65536")}{_cut(f"{name}_h", f"{name}_l_up", "n65536")}
    {name}_low = Cast<to=6>({name}_l)
    {name}_high = Cast<to=6>({name}_h)"""


def _scrambled(name: str, high: str, low: str) -> str:
    """(high * 2**16 + low) times the scrambler, modulo 2**32, in 32-bit products: ``<name>_high`` and ``_low``."""
    return f"""
    {name}_low_64 = Cast<to=7>({low})
    {name}_high_64 = Cast<to=7>({high})
    {name}_p = Mul({name}_low_64, scrambler_low){_cut(f"{name}_l", f"{name}_p", "n65536")}
    {name}_q = Mul({name}_high_64, scrambler_low)
    {name}_r = Mul({name}_low_64, scrambler_high)
    {name}_s = Add({name}_q, {name}_r)
    {name}_t = Add({name}_s, {name}_l_up){_cut(f"{name}_h", f"{name}_t", "n65536")}
    {name}_low = Cast<to=6>({name}_l)
    {name}_high = Cast<to=6>({name}_h)"""


def _scramble(name: str, high: str, folded: str) -> str:
    """Two rounds of ((x >> 16) ^ x) * c and a final shift: ``<name>_high`` and ``<name>_low``, the halves of 32 bits.

    ``folded`` is the low half after the first XOR, high ^ low.
    """
    return f"""{_scrambled(f"{name}_once", high, folded)}
{_xor(f"{name}_again", f"{name}_once_high", f"{name}_once_low")}
{_scrambled(f"{name}_twice", f"{name}_once_high", f"{name}_again")}
    {name}_high = Identity({name}_twice_high)
{_xor(f"{name}_low", f"{name}_twice_high", f"{name}_twice_low")}"""


# TensorRT has neither unsigned 32-bit integers nor XOR, so words are pairs of int32 below 2**16.
_HASH = f"""
    n2 = Constant<value_int = 2>()
    n256 = Constant<value_int = 256>()
    byte_32 = Constant<value = int32 {{256}}>()
    n65536 = Constant<value_int = 65536>()
    scrambler_high = Constant<value_int = {SCRAMBLER >> 16}>()
    scrambler_low = Constant<value_int = {SCRAMBLER & 0xFFFF}>()
    powers = Constant<value_ints = {[1 << i for i in range(8)]}>()

    # xor_of_bytes: a ^ b = a + b - 2 (a & b) at 256 a + b; a & b is the sum of the powers of two that both have.
    byte = Range(first_column, n256, step)
    byte_down = Unsqueeze(byte, one)
    shifted = Div(byte_down, powers)
    bits = Mod(shifted, n2)
    parts = Mul(bits, powers)
    bits_f = Cast<to=1>(bits)
    parts_f = Cast<to=1>(parts)
    bits_across = Transpose<perm = [1, 0]>(bits_f)
    in_both_f = MatMul(parts_f, bits_across)
    in_both = Cast<to=7>(in_both_f)
    in_both_twice = Mul(in_both, n2)
    byte_sums = Add(byte_down, byte)
    xor_square = Sub(byte_sums, in_both_twice)
    xor_square_32 = Cast<to=6>(xor_square)
    xor_of_bytes = Reshape(xor_square_32, minus_one)

    key_i = Cast<to=7>(u_24)
    key_each = Unsqueeze(key_i, two)
{_halves("key_at", "key_each")}
{_xor("key_folded", "key_at_high", "key_at_low")}
{_scramble("key", "key_at_high", "key_folded")}
    vocab_0 = Squeeze(vocab, zero)
    last_id_excluded = Add(vocab_0, step)
    id_64 = Range(step, last_id_excluded, step)
{_halves("id_at", "id_64")}
{_xor("id_folded", "id_at_high", "id_at_low")}
{_scramble("id", "id_at_high", "id_folded")}

    # Of id ^ key the upper half, and the lower one folded: (a ^ b) ^ (c ^ d) = (a ^ c) ^ (b ^ d).
{_xor("id_half", "id_high", "id_low")}
{_xor("key_half", "key_high", "key_low")}
{_xor("both_high", "id_high", "key_high")}
{_xor("both_folded", "id_half", "key_half")}
{_scramble("mixed", "both_high", "both_folded")}
    mixed_high_64 = Cast<to=7>(mixed_high)
    mixed_low_64 = Cast<to=7>(mixed_low)
    mixed_up = Mul(mixed_high_64, n65536)
    mixed = Add(mixed_up, mixed_low_64)
"""


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

    # Noise from (uniform, token id).
    below_1 = Constant<value_float = 0.99999994>()
    bits_24 = Constant<value_float = 16777216.0>()
    u_in = Clip(uniform, zero_f, below_1)
    u_24 = Mul(u_in, bits_24)
{_HASH}    hashed = Cast<to=1>(mixed)
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
    """Return the nodes that compute ``agrees`` bool [B, E]: ``same``, or close enough in a lossy row.

    ``d`` int64 [B, E] are the drafts; ``judged`` computes ``best_score`` and ``d_score`` [B, E]: the largest score
    that a draft is compared with, and the score of the draft, whose id is ``d_in``.
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


# From accepted int64 [B, 1], the number of accepted drafts, and emitted int64 [B, E].
EMISSION = """
  live_2 = Unsqueeze(live, one)
  tokens_64 = Where(live_2, emitted, minus_one)
  tokens = Cast<to=6>(tokens_64)
  accepted_1 = Squeeze(accepted, one)
  count = Add(accepted_1, one)
  num_tokens_64 = Where(live, count, zero)
  num_tokens = Cast<to=6>(num_tokens_64)
"""
