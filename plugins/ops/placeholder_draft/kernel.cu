// PlaceholderDraft: see reference.py. One block per row; threads process its columns. Every length is clamped to its
// tensor before it is used as an index.

extern "C" __global__ void placeholder_draft(
    const long long* __restrict__ input_ids, const long long* __restrict__ start, const int* __restrict__ window_len,
    const int* __restrict__ draft_len, const int* __restrict__ tokens, const int* __restrict__ num_tokens, int rows,
    int width, int columns, int mask_token_id, long long* __restrict__ row_ids, bool* __restrict__ row_is_real,
    long long* __restrict__ emit_rows, long long* __restrict__ newest, long long* __restrict__ next_start,
    int* __restrict__ next_window_len, int* __restrict__ next_draft_len) {
  using namespace peagle;
  const int row = block_index();
  if (row >= rows) return;
  const int k = columns - 1;
  const int window = within(window_len[row], 0, width);
  const int drafts = at_least(at_most(draft_len[row], at_most(k, window - 1)), 0);
  const int emitted = within(num_tokens[row], 0, drafts + 1);
  const int c0 = window - 1 - drafts;  // window column of the newest token in the target's input
  const int real = window > 0 && emitted > 0 ? c0 + emitted : 0;

  const long long* ids = input_ids + static_cast<long long>(row) * width;
  const int* emission = tokens + static_cast<long long>(row) * columns;
  const int count = width + k - 1;
  const long long first = static_cast<long long>(row) * count;
  for (int c = thread_index(); c < count; c += block_size()) {
    long long id = mask_token_id;
    if (c < real) id = c < c0 ? ids[c + 1] : emission[c - c0];
    row_ids[first + c] = id;
    row_is_real[first + c] = c < real;
  }
  for (int j = thread_index(); j < k; j += block_size()) {
    emit_rows[static_cast<long long>(row) * k + j] = at_least(real - 1 + j, 0);
  }
  if (thread_index() == 0) {
    newest[row] = real > 0 ? emission[emitted - 1] : 0;
    next_start[row] = start[row] + real;
    next_window_len[row] = real > 0 ? k + 1 : 0;
    next_draft_len[row] = real > 0 ? k : 0;
  }
}
