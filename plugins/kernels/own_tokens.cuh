// Selects the target's own token after each column (greedy or sampled), for AcceptPrefix and AcceptTree. One thread
// block cluster processes one row.
//
// 1. Find the largest logit of every valid column, in one pass over memory with many loads in flight across columns. A
//    greedy row is then done. Stopping at the first rejected draft would save loads, but one cluster barrier per column
//    takes longer than the loads.
// 2. A sampling row processes one column after another and stops where no draft is accepted, because each column costs
//    arithmetic; its logits are now in L2. Top-k and top-p become lower bounds of z, found with histograms over
//    successively narrower ranges. Histograms are integer sums, which do not depend on the order of additions, so a
//    seed always gives the same tokens.
//
// The kernel needs no workspace, keeps no state, and does not depend on the execution order of blocks or warps.

#ifndef PEAGLE_THREADS
#define PEAGLE_THREADS 512
#endif
#define PEAGLE_CLUSTER 8

namespace peagle {

constexpr int kWarp = 32;
constexpr int kThreads = PEAGLE_THREADS;
constexpr int kWarps = kThreads / kWarp;
constexpr int kMaxColumns = 64;    // further drafts are ignored
constexpr int kLoadsInFlight = 8;  // 16-byte loads in flight per thread
constexpr int kLogBins = 11;
constexpr int kBins = 1 << kLogBins;
constexpr int kBinsPerThread = kBins / kThreads;
static_assert(kBinsPerThread * kThreads == kBins && kWarps * kWarp == kThreads && kWarps <= kWarp,
              "bins and threads must divide evenly");
static_assert(kThreads >= kMaxColumns, "one thread per column");

// A weight is exp(z - max z) in units of 2^-44, so the sum of 2^18 weights fits in 64 bits. Weights below exp(-32) are
// zero.
constexpr float kWeightUnits = 17592186044416.0f;
constexpr float kMaxDepth = 32.0f;
constexpr float kBinsPerNat = kBins / kMaxDepth;

// Gumbel noise is between -log(log(2^33)) and -log(-log(1 - 2^-24)), so no z this far below the best can win.
constexpr float kMaxNoise = 20.5f;

constexpr float kLargestBelow1 = 0x0.ffffffp0f;
constexpr float kMaxTolerance = 0.999999f;
constexpr float kInfinity = __builtin_bit_cast(float, 0x7f800000u);  // NVRTC has no __builtin_huge_valf

struct Shared {
  u64 histogram[kBins];
  u64 best[kMaxColumns];  // per column: the candidate of its largest logit; the id is where the search for it starts
  u64 race_winner;        // the candidate with the highest score
  u64 bin, target;        // the bin that the leader found, and the running total that it searches for
  u64 continuation[2];    // how the row continues, written by the leader in even and odd steps
  u64 warp_sums[kWarps];
  i64 drafts[kMaxColumns];
  int ids[kMaxColumns];  // per column: the id of its first largest logit; later, the emitted tokens
  int count;
};

// The logits of one emission column: an unaligned head, 16-byte words, and an unaligned tail.
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

// A candidate is a sort key in the upper 32 bits and the inverted id in the lower 32 bits: the maximum is the largest
// key, and among equal keys the lowest id.
__device__ inline u64 candidate(u32 order, int id) { return static_cast<u64>(order) << 32 | ~static_cast<u32>(id); }
__device__ inline u32 order_of(u64 candidate) { return static_cast<u32>(candidate >> 32); }
__device__ inline int id_of(u64 candidate) { return static_cast<int>(~static_cast<u32>(candidate)); }

// Reduces the warp's largest candidate into shared memory. All lanes must take part.
__device__ inline void max_to_shared(u64 candidate, u64& best) {
  const u32 order = warp_max(order_of(candidate));
  const u32 inverse = warp_max(order_of(candidate) == order ? static_cast<u32>(candidate) : 0);
  if (thread_index() % kWarp == 0) shared_max(best, static_cast<u64>(order) << 32 | inverse);
}

// Computes s.best of every column from this block's part of the row. In one turn, every thread of the cluster reads one
// word of a column. The turns of all columns form one sequence, so loads stay in flight across columns.
template <class F>
__device__ void find_largest(Shared& s, const typename F::Raw* row, int columns, int vocab, int tid, int stride) {
  const int turns = (vocab / F::kPerWords + stride - 1) / stride;
  const int total = columns * turns;
  // The next load: its column and turn, the number of words left from this thread's word on, and the address.
  Column<F> ahead(row, 0, vocab);
  int ahead_j = 0, ahead_turn = 0, left = ahead.words - tid;
  const typename F::Raw* next = ahead.logits + ahead.start(tid);
  // The column and turn that are evaluated, and the first turn in which this thread saw its largest value.
  int j = 0, turn = 0, best_turn = 0;
  float best = -kInfinity;
  for (int done = 0; done < total; done += kLoadsInFlight) {
    Words words[kLoadsInFlight];
    u32 loaded = 0;
#pragma unroll
    for (int i = 0; i < kLoadsInFlight; ++i) {
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
        left = ahead.words - tid;
        next = ahead.logits + ahead.start(tid);
      }
    }
#pragma unroll
    for (int i = 0; i < kLoadsInFlight; ++i) {
      if (done + i >= total) break;
      // Adding 0 turns -0 into +0, and `larger` returns a canonical NaN, so the bits change only for a larger value.
      const float other = loaded >> i & 1 ? F::largest(words[i]) + 0.0f : best;
      const float larger_one = larger(best, other);
      if (float_to_bits(larger_one) != float_to_bits(best)) best_turn = turn;
      best = larger_one;
      if (++turn == turns) {
        const Column<F> column(row, j, vocab);
        const int word = best_turn * stride + tid;
        max_to_shared(word < column.words ? candidate(order(best), column.start(word)) : 0, s.best[j]);
        ++j;
        turn = best_turn = 0;
        best = -kInfinity;
      }
    }
  }
  // The elements outside of whole words: fewer than two words.
  for (int i = tid; i < columns * 2 * F::kPerWords; i += stride) {
    const Column<F> column(row, i / (2 * F::kPerWords), vocab);
    const int single = i % (2 * F::kPerWords);
    if (single >= column.singles()) continue;
    const int id = column.single(single);
    shared_max(s.best[i / (2 * F::kPerWords)], candidate(order(column.at(id)), id));
  }
}

// Calls visit(logit, id) for this thread's part of the column, except for logits below `least`.
template <class F, class Visit>
__device__ inline void each_logit(const Column<F>& column, float least, int tid, int stride, Visit visit) {
  Words next;
  if (tid < column.words) next = load_16_bytes(column.logits + column.start(tid));
#pragma unroll 1
  for (int word = tid; word < column.words; word += stride) {
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
  if (tid < column.singles()) {
    const int id = column.single(tid);
    const float x = column.at(id);
    if (!(x < least)) visit(x, id);
  }
}

// Returns a logit that is at least `depth` below the best after division by the temperature. The second term covers all
// rounding errors.
__device__ inline float logit_below(float best, float depth, float heat) {
  const float scaled = best * heat;
  return (best - depth) * heat - 1e-6f * (scaled < 0 ? -scaled : scaled);
}

// Leader block only. Adds the histograms of the cluster and finds the bin where the running total from bin 0 reaches
// the target. Sets s.bin (kBins if the total stays below) and s.target, the part of the target that falls in this bin.
// With share < 1, the target is this share of the grand total; otherwise it is s.target.
__device__ inline void find_bin(Shared& s, float share) {
  const int thread = thread_index();
  const int lane = thread % kWarp, warp = thread / kWarp;
  u64 own = 0;
#pragma unroll 1
  for (int i = thread * kBinsPerThread; i < (thread + 1) * kBinsPerThread; ++i) {
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
  u64 target = s.target;
  if (share < 1) {
    const double wanted = static_cast<double>(total) * share;
    target = static_cast<u64>(wanted);
    if (static_cast<double>(target) < wanted) ++target;
  }
  sync_block();
  u64 above = up_to - own;
  if (above < target && target <= up_to) {
    int bin = thread * kBinsPerThread;
    for (; above + s.histogram[bin] < target; ++bin) above += s.histogram[bin];
    s.bin = bin;
    s.target = target - above;
  }
}

__device__ inline void clear_histogram(Shared& s) {
  for (int i = thread_index(); i < kBins; i += kThreads) s.histogram[i] = 0;
  sync_block();
}

// Called by all blocks after filling their histograms. Returns the bin that the leader finds.
__device__ inline int find_bin_together(Shared& s, float share) {
  sync_cluster();
  if (cluster_rank() == 0) find_bin(s, share);
  sync_cluster();
  return static_cast<int>(peer_load(s.bin, 0));
}

// Returns the lower bound of z that implements top-k (share 1): the s.target-th largest z; or top-p (share < 1): the
// smallest z of the set of largest z >= floor whose weights reach this share. Returns -inf if the bound is too low to
// matter. `best` must be finite.
template <class F>
__device__ float filter_floor(Shared& s, const Column<F>& column, float heat, float best, float floor, float share,
                              int tid, int stride) {
  const bool is_top_p = share < 1;
  const float least = logit_below(best, kMaxDepth + 0.5f, heat);
  const auto weight = [&](float z) {
    return is_top_p ? static_cast<u64>(expf(z - best) * kWeightUnits + 0.5f) : static_cast<u64>(1);
  };
  // The first histogram has bins of equal width, which fill evenly, so atomics rarely conflict.
  clear_histogram(s);
  each_logit(column, least, tid, stride, [&](float logit, int) {
    const float z = logit / heat;
    const float depth = (best - z) * kBinsPerNat;
    if (z >= floor && depth < kBins) shared_add(s.histogram[static_cast<int>(depth)], weight(z));
  });
  const int coarse = find_bin_together(s, share);
  if (coarse >= kBins) return -kInfinity;

  // The next histograms split the range of this bin until one value is left. The range is slightly too wide; membership
  // in the bin is tested with the same expression as before.
  const float slack = 4e-7f * ((best < 0 ? -best : best) + 2 * kMaxDepth);
  u32 high = order(best - coarse / kBinsPerNat + slack);
  u32 low = order(best - (coarse + 1) / kBinsPerNat - slack);
  while (low < high) {
    const int shift = at_least(kWarp - leading_zeros(high - low) - kLogBins, 0);
    clear_histogram(s);
    each_logit(column, least, tid, stride, [&](float logit, int) {
      const float z = logit / heat;
      const float depth = (best - z) * kBinsPerNat;
      if (z >= floor && depth < kBins && static_cast<int>(depth) == coarse) {
        const u32 key = order(z);
        if (key >= low && key <= high) shared_add(s.histogram[(high - key) >> shift], weight(z));
      }
    });
    const u32 bin = find_bin_together(s, 1.0f);
    if (bin >= kBins) break;  // cannot happen: the target lies in the range
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

// Samples a token. Only the leader block's result is valid, but all blocks of the cluster must take part. `best_logit`
// is the column's largest logit.
template <class F>
__device__ int sample(Shared& s, const Operands<F>& x, int row, int j, float best_logit, int tid, int stride) {
  const Column<F> column = x.column(row, j);
  const float heat = x.temperature[row];
  const float best = best_logit / heat;
  const float min_p = x.min_p[row];
  const float share = min_p < 0 ? 0 : min_p > 1 ? 1 : min_p;
  float floor = best + logf(share);
  // Return id 0 if the logits define no distribution: NaN or all -inf. A best of +inf is sampled only if min-p excludes
  // the finite logits.
  if (!(floor <= best) || best == -kInfinity) return 0;
  if (best < kInfinity) {
    const int top_k = x.top_k[row];
    const float top_p = x.top_p[row];
    if (thread_index() == 0) s.target = top_k;
#pragma unroll 1
    for (int top_p_now = 0; top_p_now < 2; ++top_p_now) {  // a loop, so that filter_floor is inlined once
      if (top_p_now ? !(0 < top_p && top_p < 1) : !(0 < top_k && top_k < column.vocab)) continue;
      const float last = filter_floor(s, column, heat, best, top_p_now ? floor : -kInfinity, top_p_now ? top_p : 1.0f,
                                      tid, stride);
      if (last > floor) floor = last;
    }
    if (top_p <= 0) floor = best;
  }
  const float uniform = x.uniform[static_cast<i64>(row) * x.columns + j];
  const float clamped = uniform > 0 ? at_most(uniform, kLargestBelow1) : 0;
  const u32 key = scramble(static_cast<u32>(clamped * 0x1p24f));
  u64 winner = 0;
  each_logit(column, logit_below(best, kMaxNoise, heat), tid, stride, [&](float logit, int id) {
    const float z = logit / heat;
    if (z >= floor) {
      const u64 other = candidate(order(z + gumbel(key, id)), id);
      if (other > winner) winner = other;
    }
  });
  if (thread_index() == 0) s.race_winner = 0;
  sync_block();
  max_to_shared(winner, s.race_winner);
  sync_cluster();
  if (cluster_rank() != 0) return 0;
  for (int rank = 0; rank < cluster_size(); ++rank) {
    const u64 other = peer_load(s.race_winner, rank);
    if (other > winner) winner = other;
  }
  return within(id_of(winner), 0, column.vocab - 1);
}

// The lossy acceptance policy: p(draft) >= (1 - tolerance) * max p, before any filter.
template <class F>
__device__ bool is_tolerated(const Operands<F>& x, int row, int j, i64 draft, float best_logit) {
  const float tolerance = x.tolerance[row];
  if (!(tolerance > 0) || draft < 0 || draft >= x.vocab) return false;
  const float heat = x.temperature[row] > 0 ? x.temperature[row] : 1;
  const float least = best_logit / heat + logf(1 - at_most(tolerance, kMaxTolerance));
  return x.column(row, j).at(static_cast<int>(draft)) / heat >= least;
}

// Computes s.best of columns 0..drafts in every block; s.ids and s.drafts only in the leader block.
template <class F>
__device__ void find_best(Shared& s, const Operands<F>& x, int row, int first_draft, int drafts, int tid, int stride) {
  const int j = thread_index();
  if (j <= drafts) s.best[j] = 0;
  if (j < drafts) s.drafts[j] = x.input_ids[static_cast<i64>(row) * x.width + first_draft + j];
  sync_block();
  find_largest<F>(s, x.column(row, 0).logits, drafts + 1, x.vocab, tid, stride);
  sync_cluster();
  u64 best = 0;
  if (j <= drafts) {
    for (int rank = 0; rank < cluster_size(); ++rank) best = at_least(best, peer_load(s.best[j], rank));
    if (cluster_rank() == 0) {
      // Find the first element of the word that equals the largest logit (or is NaN). All loads are in flight at once.
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
  sync_cluster();  // no block may change s.best or exit while others read it
  if (j <= drafts) s.best[j] = best;
  sync_block();
}

}  // namespace peagle
