// AcceptTree: one launch for all rows. own_tokens.cuh selects tokens, and a row descends from draft to accepted child.
// Results equal reference.py bit for bit, except where expf and logf round differently.

namespace peagle {

struct TreeShared : Shared {
  int parents[kMaxColumns];  // parent column of each draft; column 0 is the newest committed token
  int path[kMaxColumns];     // visited columns
};

// Returns the parent of a draft: its last ancestor among the earlier drafts, or 0. `ancestors` starts at the newest
// committed token.
__device__ inline int parent_of(const bool* ancestors, int column) {
  int parent = column - 1;
  while (parent > 0 && !ancestors[parent]) --parent;
  return parent;
}

// Descends from column j with token s.ids[j] to the first child with this token, otherwise to the first tolerated
// child. Sets s.continuation to the child's column, or 0 if the row ends. Called by one thread. Emitted tokens
// overwrite s.ids of columns that the row has already passed.
template <class F>
__device__ void accept_child(TreeShared& s, const Operands<F>& x, int row, int j, int step, int drafts) {
  const float best = unorder(order_of(s.best[j]));
  int child = 0;
  for (int at = j + 1; at <= drafts; ++at) {
    if (s.parents[at] != j) continue;
    const i64 draft = s.drafts[at - 1];
    if (draft == s.ids[j]) {
      child = at;
      break;
    }
    if (child == 0 && is_tolerated(x, row, j, draft, best)) child = at;
  }
  s.path[step] = j;
  s.ids[step] = child == 0 ? s.ids[j] : static_cast<int>(s.drafts[child - 1]);
  s.count = step + 1;
  s.continuation[step % 2] = child;
}

template <class F>
__device__ void accept_tree(const Operands<F>& x, const bool* ancestors, int* path) {
  PEAGLE_SHARED(TreeShared, s);
  const int thread = thread_index(), rank = cluster_rank();
  const int row = block_index() / cluster_size();
  if (row >= x.rows) return;
  int* emission = x.tokens + static_cast<i64>(row) * x.columns;
  path += static_cast<i64>(row) * x.columns;

  const int window = within(x.window_len[row], 0, x.width);
  const i64 forced = x.forced_next[row];
  if (window == 0 || forced >= 0) {
    if (rank != 0) return;
    for (int j = thread; j < x.columns; j += kThreads) {
      const bool emits = window > 0 && j == 0;
      emission[j] = emits ? static_cast<int>(forced) : -1;
      path[j] = emits ? window - 1 : -1;
    }
    if (thread == 0) x.num_tokens[row] = window > 0;
    return;
  }
  const int max_drafts = at_most(at_most(x.columns, kMaxColumns) - 1, window - 1);
  const int drafts = at_least(at_most(x.draft_len[row], max_drafts), 0);
  const int newest = window - 1 - drafts;
  const int tid = rank * kThreads + thread, stride = cluster_size() * kThreads;
  if (0 < thread && thread <= drafts) {
    s.parents[thread] = parent_of(ancestors + (static_cast<i64>(row) * x.width + newest + thread) * x.width + newest,
                                  thread);
  }
  find_best(s, x, row, newest + 1, drafts, tid, stride);

  if (!(x.temperature[row] <= 0)) {
    for (int j = 0, step = 0;; ++step) {
      const int sampled = sample(s, x, row, j, unorder(order_of(s.best[j])), tid, stride);
      if (rank == 0 && thread == 0) {
        s.ids[j] = sampled;
        accept_child(s, x, row, j, step, drafts);
      }
      // s.continuation is double-buffered, because `sample` does not always contain a barrier.
      sync_cluster();
      j = static_cast<int>(peer_load(s.continuation[step % 2], 0));
      if (j == 0) break;
    }
    sync_cluster();  // no block may exit while others read its shared memory
  } else if (rank == 0) {
    if (thread == 0) {
      int j = 0, step = 0;
      do {
        accept_child(s, x, row, j, step, drafts);
        j = static_cast<int>(s.continuation[step++ % 2]);
      } while (j != 0);
    }
    sync_block();
  }
  if (rank != 0) return;
  for (int j = thread; j < x.columns; j += kThreads) {
    emission[j] = j < s.count ? s.ids[j] : -1;
    path[j] = j < s.count ? newest + s.path[j] : -1;
  }
  if (thread == 0) x.num_tokens[row] = s.count;
}

}  // namespace peagle

// The minimum of one block per SM keeps ptxas from spilling registers to fit a second one.
#define PEAGLE_ENTRY(dtype, Format)                                                                                    \
  extern "C" __global__ void PEAGLE_CLUSTER_OF(PEAGLE_CLUSTER) __launch_bounds__(PEAGLE_THREADS, 1)                    \
      accept_tree_##dtype(                                                                                             \
          const Format::Raw* __restrict__ logits, const peagle::i64* __restrict__ input_ids,                           \
          const int* __restrict__ window_len, const int* __restrict__ draft_len,                                       \
          const peagle::i64* __restrict__ forced_next, const float* __restrict__ uniform,                              \
          const float* __restrict__ temperature, const int* __restrict__ top_k, const float* __restrict__ top_p,       \
          const float* __restrict__ min_p, const float* __restrict__ tolerance, const bool* __restrict__ ancestors,    \
          int rows, int columns, int width, int vocab, int* __restrict__ tokens, int* __restrict__ num_tokens,         \
          int* __restrict__ path) {                                                                                    \
    peagle::accept_tree<Format>({logits, input_ids, window_len, draft_len, forced_next, uniform, temperature, top_k,   \
                                 top_p, min_p, tolerance, rows, columns, width, vocab, tokens, num_tokens},            \
                                ancestors, path);                                                                      \
  }

PEAGLE_ENTRY(float32, peagle::Float32)
PEAGLE_ENTRY(float16, peagle::Float16)
PEAGLE_ENTRY(bfloat16, peagle::BFloat16)
