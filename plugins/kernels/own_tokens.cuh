// The token that the target draws after each column, for the kernels that accept drafts: a thread block cluster per row.
//
// 1. The largest logit of every valid column, in one pass over memory that keeps many loads of all columns in flight.
//    A greedy row is then done: rejecting early would save loads, but a round trip through the cluster for each column
//    takes longer than the loads do.
// 2. A sampling row draws column by column and stops where no draft agrees, because a column costs it arithmetic. It
//    reads its logits from L2 now. Top-k and top-p become floors, found by histograms over ever narrower ranges:
//    integer sums, which are the same in every order, so that a seed gives the same tokens every time.
//
// No workspace, nothing left behind, no order of execution that matters.

#ifndef PEAGLE_THREADS
#define PEAGLE_THREADS 512
#endif
#define PEAGLE_CLUSTER 8

namespace peagle {

constexpr int kWarp = 32;
constexpr int kThreads = PEAGLE_THREADS;
constexpr int kWarps = kThreads / kWarp;
constexpr int kMostColumns = 64;  // drafts beyond are not looked at
constexpr int kInFlight = 8;      // loads of 16 bytes that a thread waits for at once
constexpr int kLogBins = 11;
constexpr int kBins = 1 << kLogBins;
constexpr int kBinsEach = kBins / kThreads;
static_assert(kBinsEach * kThreads == kBins && kWarps * kWarp == kThreads && kWarps <= kWarp, "whole shares");
static_assert(kThreads >= kMostColumns, "a thread for every column");

// Weights are exp(z - max z) in units of 2^-44: 2^18 of them fit into 64 bits. Below exp(-32) they round to nothing.
constexpr float kWeightUnits = 17592186044416.0f;
constexpr float kDeepest = 32.0f;
constexpr float kBinsPerNat = kBins / kDeepest;

// Noise lies between -log(log(2^33)) and -log(-log(1 - 2^-24)), so nothing this far below the best wins a race.
constexpr float kWidestNoise = 20.5f;

constexpr float kLargestBelow1 = 0x0.ffffffp0f;
constexpr float kLargestTolerance = 0.999999f;
constexpr float kInfinity = __builtin_bit_cast(float, 0x7f800000u);  // NVRTC has no __builtin_huge_valf

struct Shared {
  u64 histogram[kBins];
  u64 best[kMostColumns];  // a column's largest logit: its order, then ~(where to begin looking for it)
  u64 raced;               // the winner of the race: the order of its score, then ~id
  u64 bin, goal;           // what the leader found in the histograms, and what it looks for
  u64 told[2];             // what the leader says where the row goes on, in an even, an odd step
  u64 warp_sums[kWarps];
  i64 drafts[kMostColumns];
  int ids[kMostColumns];  // a column's first largest logit; then what the row emits
  int count;
};

// One emission column of logits: single elements, 16-byte words, single elements.
template <class F>
struct Column {
  const typename F::Raw* logits;
  int vocab, head, words;

  __device__ Column(const typename F::Raw* row, int j, int vocab)
      : logits(row + static_cast<i64>(j) * vocab), vocab(vocab) {
    const int past = static_cast<int>(reinterpret_cast<u64>(logits) & 15);
    head = at_most(((16 - past) & 15) / static_cast<int>(sizeof(typename F::Raw)), vocab);
    words = (vocab - head) / F::kPerWords;
  }
  __device__ int start(int word) const { return head + word * F::kPerWords; }
  __device__ int singles() const { return vocab - words * F::kPerWords; }
  __device__ int single(int i) const { return i < head ? i : i + words * F::kPerWords; }
  __device__ float at(int id) const { return F::widen(logits[id]); }
};

__device__ inline u64 candidate(u32 order, int id) { return static_cast<u64>(order) << 32 | ~static_cast<u32>(id); }
__device__ inline u32 order_of(u64 candidate) { return static_cast<u32>(candidate >> 32); }
__device__ inline int id_of(u64 candidate) { return static_cast<int>(~static_cast<u32>(candidate)); }

// The largest candidate of the warp into shared memory; all lanes must come.
__device__ inline void offer(u64 candidate, u64& best) {
  const u32 order = warp_max(order_of(candidate));
  const u32 inverse = warp_max(order_of(candidate) == order ? static_cast<u32>(candidate) : 0);
  if (thread_index() % kWarp == 0) shared_max(best, static_cast<u64>(order) << 32 | inverse);
}

// s.best of every column, from the part of the row that this block reads. The words of a column are read in turns of all
// threads of the cluster; the turns of all columns follow each other without a gap, so that loads are always in flight.
template <class F>
__device__ void find_largest(Shared& s, const typename F::Raw* row, int columns, int vocab, int me, int stride) {
  const int turns = (vocab / F::kPerWords + stride - 1) / stride;
  const int total = columns * turns;
  // Where the next load is: the column, its turn, this thread's word of that turn, and how many words there are from it.
  Column<F> ahead(row, 0, vocab);
  int ahead_j = 0, ahead_turn = 0, left = ahead.words - me;
  const typename F::Raw* next = ahead.logits + ahead.start(me);
  // Which column and turn is looked at, and the first turn in which this thread saw the largest so far.
  int j = 0, turn = 0, best_turn = 0;
  float best = -kInfinity;
  for (int done = 0; done < total; done += kInFlight) {
    Words words[kInFlight];
    u32 loaded = 0;
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      if (done + i >= total) break;
      if (left > 0) {
        words[i] = load_16_bytes(next);
        loaded |= 1u << i;
      }
      left -= stride;
      next += stride * F::kPerWords;
      if (++ahead_turn == turns && ++ahead_j < columns) {
        ahead = Column<F>(row, ahead_j, vocab);
        ahead_turn = 0;
        left = ahead.words - me;
        next = ahead.logits + ahead.start(me);
      }
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      if (done + i >= total) break;
      // + 0 makes one zero of the two. With the NaN of `larger`, the bits then change only when a larger one comes.
      const float other = loaded >> i & 1 ? F::largest(words[i]) + 0.0f : best;
      const float larger_one = larger(best, other);
      if (float_to_bits(larger_one) != float_to_bits(best)) best_turn = turn;
      best = larger_one;
      if (++turn == turns) {
        const Column<F> column(row, j, vocab);
        const int word = best_turn * stride + me;
        offer(word < column.words ? candidate(order(best), column.start(word)) : 0, s.best[j]);
        ++j;
        turn = best_turn = 0;
        best = -kInfinity;
      }
    }
  }
  // The singles at the ends, fewer than two words' worth.
  for (int i = me; i < columns * 2 * F::kPerWords; i += stride) {
    const Column<F> column(row, i / (2 * F::kPerWords), vocab);
    const int single = i % (2 * F::kPerWords);
    if (single >= column.singles()) continue;
    const int id = column.single(single);
    shared_max(s.best[i / (2 * F::kPerWords)], candidate(order(column.at(id)), id));
  }
}

// Calls visit(logit, id) for this thread's share of the column, but not for logits below `least`.
template <class F, class Visit>
__device__ inline void each_logit(const Column<F>& column, float least, int me, int stride, Visit visit) {
  Words next;
  if (me < column.words) next = load_16_bytes(column.logits + column.start(me));
#pragma unroll 1
  for (int word = me; word < column.words; word += stride) {
    Words words = next;
    if (word + stride < column.words) next = load_16_bytes(column.logits + column.start(word + stride));
    if (F::largest(words) < least) continue;
#pragma unroll 1
    for (int i = 0; i < F::kPerWords; ++i) {
      const float x = F::first(words);
      F::drop_first(words);
      if (!(x < least)) visit(x, column.start(word) + i);
    }
  }
  if (me < column.singles()) {
    const int id = column.single(me);
    const float x = column.at(id);
    if (!(x < least)) visit(x, id);
  }
}

// A logit that is surely more than `depth` below the best after the division by the temperature. The second term covers
// the rounding of all steps.
__device__ inline float logit_below(float best, float depth, float heat) {
  const float scaled = best * heat;
  return (best - depth) * heat - 1e-6f * (scaled < 0 ? -scaled : scaled);
}

// In the leader: adds up the histograms of the cluster and finds the bin in which the running total, from bin 0 on,
// reaches the goal: s.bin, kBins if it never does; and s.goal, what is left of the goal in that bin. With share < 1 the
// goal is that share of the grand total; otherwise it is s.goal.
__device__ inline void find_bin(Shared& s, float share) {
  const int thread = thread_index();
  const int lane = thread % kWarp, warp = thread / kWarp;
  u64 own = 0;
#pragma unroll 1
  for (int i = thread * kBinsEach; i < (thread + 1) * kBinsEach; ++i) {
    u64 sum = 0;
    for (int rank = 0; rank < cluster_size(); ++rank) sum += peer_load(s.histogram[i], rank);
    s.histogram[i] = sum;
    own += sum;
  }
  u64 up_to = own;
  for (int by = 1; by < kWarp; by *= 2) {
    const u64 other = shuffle_up(up_to, by);
    if (lane >= by) up_to += other;
  }
  if (lane == kWarp - 1) s.warp_sums[warp] = up_to;
  if (thread == 0) s.bin = kBins;
  sync_block();
  u64 total = 0;
#pragma unroll 1
  for (int i = 0; i < kWarps; ++i) {
    if (i == warp) up_to += total;
    total += s.warp_sums[i];
  }
  u64 goal = s.goal;
  if (share < 1) {
    const double wanted = static_cast<double>(total) * share;
    goal = static_cast<u64>(wanted);
    if (static_cast<double>(goal) < wanted) ++goal;
  }
  sync_block();
  u64 above = up_to - own;
  if (above < goal && goal <= up_to) {
    int bin = thread * kBinsEach;
    for (; above + s.histogram[bin] < goal; ++bin) above += s.histogram[bin];
    s.bin = bin;
    s.goal = goal - above;
  }
}

__device__ inline void clear_histogram(Shared& s) {
  for (int i = thread_index(); i < kBins; i += kThreads) s.histogram[i] = 0;
  sync_block();
}

// After every block has filled its histogram: what the leader finds, for all.
__device__ inline int find_bin_together(Shared& s, float share) {
  sync_cluster();
  if (cluster_rank() == 0) find_bin(s, share);
  sync_cluster();
  return static_cast<int>(peer_load(s.bin, 0));
}

// The least z of those >= floor that is needed, going down from the best: to have s.goal of them (share 1), or to have
// this share of their weight. -inf if that is too deep to matter. best is finite.
template <class F>
__device__ float least_needed(Shared& s, const Column<F>& column, float heat, float best, float floor, float share,
                              int me, int stride) {
  const bool weighs = share < 1;
  const float least = logit_below(best, kDeepest + 0.5f, heat);
  const auto weight = [&](float z) {
    return weighs ? static_cast<u64>(expf(z - best) * kWeightUnits + 0.5f) : static_cast<u64>(1);
  };
  // The first histogram has bins of equal width, so that they fill evenly and threads seldom meet in one.
  clear_histogram(s);
  each_logit(column, least, me, stride, [&](float logit, int) {
    const float z = logit / heat;
    const float depth = (best - z) * kBinsPerNat;
    if (z >= floor && depth < kBins) shared_add(s.histogram[static_cast<int>(depth)], weight(z));
  });
  const int coarse = find_bin_together(s, share);
  if (coarse >= kBins) return -kInfinity;

  // The following ones split the range of that bin, until one value is left. Its ends are taken a little too wide: what
  // belongs to the bin is decided by the same sum as before.
  const float slack = 4e-7f * ((best < 0 ? -best : best) + 2 * kDeepest);
  u32 high = order(best - coarse / kBinsPerNat + slack);
  u32 low = order(best - (coarse + 1) / kBinsPerNat - slack);
  while (low < high) {
    const int shift = at_least(kWarp - leading_zeros(high - low) - kLogBins, 0);
    clear_histogram(s);
    each_logit(column, least, me, stride, [&](float logit, int) {
      const float z = logit / heat;
      const float depth = (best - z) * kBinsPerNat;
      if (z >= floor && depth < kBins && static_cast<int>(depth) == coarse) {
        const u32 key = order(z);
        if (key >= low && key <= high) shared_add(s.histogram[(high - key) >> shift], weight(z));
      }
    });
    const u32 bin = find_bin_together(s, 1.0f);
    if (bin >= kBins) break;  // cannot be: the goal lies inside
    high -= bin << shift;
    const u32 width = (1u << shift) - 1;
    if (high - low > width) low = high - width;
  }
  return unorder(low);
}

// T. Mueller's integer hash.
__device__ inline u32 scramble(u32 x) {
  x = ((x >> 16) ^ x) * 0x45d9f3bu;
  x = ((x >> 16) ^ x) * 0x45d9f3bu;
  return (x >> 16) ^ x;
}

__device__ inline float gumbel(u32 key, int id) {
  const u32 hashed = scramble(scramble(static_cast<u32>(id) + 1) ^ key);
  const float t = within(static_cast<float>(hashed) * 0x1p-32f, 0x1p-33f, kLargestBelow1);
  return -logf(-logf(t));
}

// The op's operands, in the order of its spec.
template <class F>
struct Operands {
  const typename F::Raw* logits;
  const i64* input_ids;
  const int *window_len, *draft_len;
  const i64* forced_next;
  const float *uniform, *temperature;
  const int* top_k;
  const float *top_p, *min_p, *tolerance;
  int rows, columns, width, vocab;
  int *tokens, *num_tokens;

  __device__ Column<F> column(int row, int j) const {
    return Column<F>(logits + static_cast<i64>(row) * columns * vocab, j, vocab);
  }
};

// The drawn token, in the leader; whatever in the others. Every block of the cluster must come. best: the column's
// largest logit.
template <class F>
__device__ int draw(Shared& s, const Operands<F>& x, int row, int j, float best_logit, int me, int stride) {
  const Column<F> column = x.column(row, j);
  const float heat = x.temperature[row];
  const float best = best_logit / heat;
  const float min_p = x.min_p[row];
  const float share = min_p < 0 ? 0 : min_p > 1 ? 1 : min_p;
  float floor = best + logf(share);
  // Without a finite best there is no distribution: NaN and -inf compare with nothing or alike, and id 0 is left. An
  // infinite best wins only where min-p excludes the finite ones.
  if (!(floor <= best) || best == -kInfinity) return 0;
  if (best < kInfinity) {
    const int top_k = x.top_k[row];
    const float top_p = x.top_p[row];
    if (thread_index() == 0) s.goal = top_k;
#pragma unroll 1
    for (int top_p_now = 0; top_p_now < 2; ++top_p_now) {  // one call in the code for both
      if (top_p_now ? !(0 < top_p && top_p < 1) : !(0 < top_k && top_k < column.vocab)) continue;
      const float last = least_needed(s, column, heat, best, top_p_now ? floor : -kInfinity, top_p_now ? top_p : 1.0f,
                                      me, stride);
      if (last > floor) floor = last;
    }
    if (top_p <= 0) floor = best;
  }
  const float uniform = x.uniform[static_cast<i64>(row) * x.columns + j];
  const float inside = uniform > 0 ? at_most(uniform, kLargestBelow1) : 0;
  const u32 key = scramble(static_cast<u32>(inside * 0x1p24f));
  u64 winner = 0;
  each_logit(column, logit_below(best, kWidestNoise, heat), me, stride, [&](float logit, int id) {
    const float z = logit / heat;
    if (z >= floor) {
      const u64 other = candidate(order(z + gumbel(key, id)), id);
      if (other > winner) winner = other;
    }
  });
  if (thread_index() == 0) s.raced = 0;
  sync_block();
  offer(winner, s.raced);
  sync_cluster();
  if (cluster_rank() != 0) return 0;
  for (int rank = 0; rank < cluster_size(); ++rank) {
    const u64 other = peer_load(s.raced, rank);
    if (other > winner) winner = other;
  }
  return within(id_of(winner), 0, column.vocab - 1);
}

// Whether the lossy policy takes this draft: p(draft) >= (1 - tolerance) * max p, before any filter.
template <class F>
__device__ bool tolerable(const Operands<F>& x, int row, int j, i64 draft, float best_logit) {
  const float tolerance = x.tolerance[row];
  if (!(tolerance > 0) || draft < 0 || draft >= x.vocab) return false;
  const float heat = x.temperature[row] > 0 ? x.temperature[row] : 1;
  const float least = best_logit / heat + logf(1 - at_most(tolerance, kLargestTolerance));
  return x.column(row, j).at(static_cast<int>(draft)) / heat >= least;
}

// s.best of columns 0..drafts for the whole cluster; s.ids and s.drafts of them in the leader.
template <class F>
__device__ void find_best(Shared& s, const Operands<F>& x, int row, int first_draft, int drafts, int me, int stride) {
  const int j = thread_index();
  if (j <= drafts) s.best[j] = 0;
  if (j < drafts) s.drafts[j] = x.input_ids[static_cast<i64>(row) * x.width + first_draft + j];
  sync_block();
  find_largest<F>(s, x.column(row, 0).logits, drafts + 1, x.vocab, me, stride);
  sync_cluster();
  u64 best = 0;
  if (j <= drafts) {
    for (int rank = 0; rank < cluster_size(); ++rank) best = at_least(best, peer_load(s.best[j], rank));
    if (cluster_rank() == 0) {
      // The first of the few logits there that is the largest, or NaN if that is; all of them are loaded at once.
      const Column<F> column = x.column(row, j);
      const int first = within(id_of(best), 0, x.vocab - 1);
      int id = first;
#pragma unroll
      for (int i = F::kPerWords - 1; i >= 0; --i) {
        const int at = at_most(first + i, x.vocab - 1);
        if (order(column.at(at)) == order_of(best)) id = at;
      }
      s.ids[j] = id;
    }
  }
  sync_cluster();  // nobody may change s.best, or leave, while others read it
  if (j <= drafts) s.best[j] = best;
  sync_block();
}

}  // namespace peagle
