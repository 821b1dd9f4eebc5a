// NumbersAt: see reference.py. One block per row; threads process its emission columns.

extern "C" __global__ void numbers_at(const float* __restrict__ numbers, const long long* __restrict__ start,
                                      const int* __restrict__ window_len, const int* __restrict__ draft_len, int rows,
                                      int length, int columns, float* __restrict__ uniform) {
  using namespace peagle;
  const int row = block_index();
  if (row >= rows) return;
  const int window = at_least(window_len[row], 0);
  const int drafts = at_least(at_most(draft_len[row], at_most(columns, window) - 1), 0);
  const i64 first = within(start[row], i64{0}, i64{length}) + window - drafts;
  for (int j = thread_index(); j < columns; j += block_size()) {
    const bool known = window > 0 && first + j < length;
    uniform[static_cast<i64>(row) * columns + j] = known ? numbers[static_cast<i64>(row) * length + first + j] : 0.0f;
  }
}
