// AcceptPrefix: one launch for all rows. own_tokens.cuh selects tokens, and drafts are accepted up to the first that
// differs. Results equal reference.py bit for bit, except where expf and logf round differently.

namespace peagle {

// Decides column j: emits s.ids[j] or the accepted draft, and sets s.continuation to 1 if the row ends here. Called by
// one thread.
template <class F>
__device__ void accept(Shared& s, const Operands<F>& x, int row, int j, int drafts) {
  s.count = j + 1;
  s.continuation[j % 2] = 1;
  if (j == drafts) return;
  const i64 draft = s.drafts[j];
  if (draft != s.ids[j] && !is_tolerated(x, row, j, draft, unorder(order_of(s.best[j])))) return;
  s.ids[j] = static_cast<int>(draft);
  s.continuation[j % 2] = 0;
}

template <class F>
__device__ void accept_prefix(const Operands<F>& x) {
  PEAGLE_SHARED(Shared, s);
  const int thread = thread_index(), rank = cluster_rank();
  const int row = block_index() / cluster_size();
  if (row >= x.rows) return;
  int* emission = x.tokens + static_cast<i64>(row) * x.columns;

  const int window = within(x.window_len[row], 0, x.width);
  const i64 forced = x.forced_next[row];
  if (window == 0 || forced >= 0) {
    if (rank != 0) return;
    for (int j = thread; j < x.columns; j += kThreads) {
      emission[j] = window > 0 && j == 0 ? static_cast<int>(forced) : -1;
    }
    if (thread == 0) x.num_tokens[row] = window > 0;
    return;
  }
  const int max_drafts = at_most(at_most(x.columns, kMaxColumns) - 1, window - 1);
  const int drafts = at_least(at_most(x.draft_len[row], max_drafts), 0);
  const int tid = rank * kThreads + thread, stride = cluster_size() * kThreads;
  find_best(s, x, row, window - drafts, drafts, tid, stride);

  if (!(x.temperature[row] <= 0)) {
    for (int j = 0;; ++j) {
      const int sampled = sample(s, x, row, j, unorder(order_of(s.best[j])), tid, stride);
      if (rank == 0 && thread == 0) {
        s.ids[j] = sampled;
        accept(s, x, row, j, drafts);
      }
      // s.continuation is double-buffered, because `sample` does not always contain a barrier.
      sync_cluster();
      if (peer_load(s.continuation[j % 2], 0)) break;
    }
    sync_cluster();  // no block may exit while others read its shared memory
  } else if (rank == 0) {
    if (thread == 0) {
      int j = 0;
      do {
        accept(s, x, row, j, drafts);
      } while (!s.continuation[j++ % 2]);
    }
    sync_block();
  }
  if (rank != 0) return;
  for (int j = thread; j < x.columns; j += kThreads) emission[j] = j < s.count ? s.ids[j] : -1;
  if (thread == 0) x.num_tokens[row] = s.count;
}

}  // namespace peagle

// The minimum of one block per SM keeps ptxas from spilling registers to fit a second one.
#define PEAGLE_ENTRY(dtype, Format)                                                                                    \
  extern "C" __global__ void PEAGLE_CLUSTER_OF(PEAGLE_CLUSTER) __launch_bounds__(PEAGLE_THREADS, 1)                    \
      accept_prefix_##dtype(                                                                                           \
          const Format::Raw* __restrict__ logits, const peagle::i64* __restrict__ input_ids,                           \
          const int* __restrict__ window_len, const int* __restrict__ draft_len,                                       \
          const peagle::i64* __restrict__ forced_next, const float* __restrict__ uniform,                              \
          const float* __restrict__ temperature, const int* __restrict__ top_k, const float* __restrict__ top_p,       \
          const float* __restrict__ min_p, const float* __restrict__ tolerance, int rows, int columns, int width,      \
          int vocab, int* __restrict__ tokens, int* __restrict__ num_tokens) {                                         \
    peagle::accept_prefix<Format>({logits, input_ids, window_len, draft_len, forced_next, uniform, temperature,        \
                                  top_k, top_p, min_p, tolerance, rows, columns, width, vocab, tokens, num_tokens});   \
  }

PEAGLE_ENTRY(float32, peagle::Float32)
PEAGLE_ENTRY(float16, peagle::Float16)
PEAGLE_ENTRY(bfloat16, peagle::BFloat16)
