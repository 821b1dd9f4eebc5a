// AcceptTree: one launch for all rows; own_tokens.cuh draws, and a row goes from each draft to the child that agrees.
// The meaning is that of reference.py in this folder, to the bit but for the last digits of expf and logf.

namespace peagle {

struct Tree : Shared {
  int parents[kMostColumns];  // of a draft, by column; column 0 is the newest token that is no draft
  int path[kMostColumns];     // the columns that the row came to
};

// The last earlier draft among the ancestors of a column, or 0. `seen` says so of the columns from the newest token on.
__device__ inline int parent_of(const bool* seen, int column) {
  int parent = column - 1;
  while (parent > 0 && !seen[parent]) --parent;
  return parent;
}

// From column j, whose token is s.ids[j], to the first child with this token, else to the first that is tolerated: told
// is its column, or 0 where the row ends. One thread. What is emitted replaces tokens of columns that the row has left.
template <class F>
__device__ void follow(Tree& s, const Operands<F>& x, int row, int j, int step, int drafts) {
  const float best = unorder(order_of(s.best[j]));
  int child = 0;
  for (int at = j + 1; at <= drafts; ++at) {
    if (s.parents[at] != j) continue;
    const i64 draft = s.drafts[at - 1];
    if (draft == s.ids[j]) {
      child = at;
      break;
    }
    if (child == 0 && tolerable(x, row, j, draft, best)) child = at;
  }
  s.path[step] = j;
  s.ids[step] = child == 0 ? s.ids[j] : static_cast<int>(s.drafts[child - 1]);
  s.count = step + 1;
  s.told[step % 2] = child;
}

template <class F>
__device__ void accept_tree(const Operands<F>& x, const bool* ancestors, int* path) {
  PEAGLE_SHARED(Tree, s);
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
  const int drafts_most = at_most(at_most(x.columns, kMostColumns) - 1, window - 1);
  const int drafts = at_least(at_most(x.draft_len[row], drafts_most), 0);
  const int newest = window - 1 - drafts;
  const int me = rank * kThreads + thread, stride = cluster_size() * kThreads;
  if (0 < thread && thread <= drafts) {
    s.parents[thread] = parent_of(ancestors + (static_cast<i64>(row) * x.width + newest + thread) * x.width + newest,
                                  thread);
  }
  find_best(s, x, row, newest + 1, drafts, me, stride);

  if (!(x.temperature[row] <= 0)) {
    for (int j = 0, step = 0;; ++step) {
      const int drawn = draw(s, x, row, j, unorder(order_of(s.best[j])), me, stride);
      if (rank == 0 && thread == 0) {
        s.ids[j] = drawn;
        follow(s, x, row, j, step, drafts);
      }
      // s.told takes turns, because a draw may need no barrier of its own.
      sync_cluster();
      j = static_cast<int>(peer_load(s.told[step % 2], 0));
      if (j == 0) break;
    }
    sync_cluster();  // nobody may leave while others read from it
  } else if (rank == 0) {
    if (thread == 0) {
      int j = 0, step = 0;
      do {
        follow(s, x, row, j, step, drafts);
        j = static_cast<int>(s.told[step++ % 2]);
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

// One block to an SM is asked for, or ptxas spills to make room for a second.
#define PEAGLE_ENTRY(dtype, Format)                                                                                  \
  extern "C" __global__ void PEAGLE_CLUSTER_OF(PEAGLE_CLUSTER) __launch_bounds__(PEAGLE_THREADS, 1)                     \
      accept_tree_##dtype(                                                                                           \
          const Format::Raw* __restrict__ logits, const peagle::i64* __restrict__ input_ids,                         \
          const int* __restrict__ window_len, const int* __restrict__ draft_len,                                     \
          const peagle::i64* __restrict__ forced_next, const float* __restrict__ uniform,                            \
          const float* __restrict__ temperature, const int* __restrict__ top_k, const float* __restrict__ top_p,     \
          const float* __restrict__ min_p, const float* __restrict__ tolerance, const bool* __restrict__ ancestors,  \
          int rows, int columns, int width, int vocab, int* __restrict__ tokens, int* __restrict__ num_tokens,       \
          int* __restrict__ path) {                                                                                  \
    peagle::accept_tree<Format>({logits, input_ids, window_len, draft_len, forced_next, uniform, temperature, top_k, \
                                 top_p, min_p, tolerance, rows, columns, width, vocab, tokens, num_tokens},          \
                                ancestors, path);                                                                    \
  }

PEAGLE_ENTRY(float32, peagle::Float32)
PEAGLE_ENTRY(float16, peagle::Float16)
PEAGLE_ENTRY(bfloat16, peagle::BFloat16)
