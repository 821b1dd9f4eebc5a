// CloseUp: see reference.py. A thread moves the same 16 bytes of one head's entries along the whole path, so no two
// threads access the same bytes.

namespace peagle {

template <class Piece>
__device__ inline void close_up_pieces(Piece* entries, const i64* start, const int* path, int buffers, int slots,
                                       int heads, int length, int size, int rows, int columns) {
  const i64 count = static_cast<i64>(buffers) * rows * heads * size;
  const i64 stride = static_cast<i64>(buffers + 15) * rows * block_size();  // the number of blocks in spec.py
  for (i64 next = static_cast<i64>(block_index()) * block_size() + thread_index(); next < count; next += stride) {
    const int piece = static_cast<int>(next % size);
    const i64 head_index = next / size;
    const int head = static_cast<int>(head_index % heads);
    const i64 row_index = head_index / heads;
    const int row = static_cast<int>(row_index % rows);
    const i64 first = ((row_index / rows * slots + row) * heads + head) * length;
    const int* row_path = path + static_cast<i64>(row) * columns;
    const i64 begin = start[row], target = begin + row_path[0];
    for (int i = 0; i < columns && row_path[i] >= 0; ++i) {
      const i64 from = begin + row_path[i], to = target + i;
      if (from == to || from < 0 || from >= length || to < 0 || to >= length) continue;
      entries[(first + to) * size + piece] = entries[(first + from) * size + piece];
    }
  }
}

}  // namespace peagle

extern "C" __global__ void __launch_bounds__(128) close_up(const signed char*, const long long* __restrict__ start,
                                                           const int* __restrict__ path, int buffers, int slots,
                                                           int heads, int length, int size, int rows, int columns,
                                                           signed char* entries) {
  using namespace peagle;
  if ((size | static_cast<int>(reinterpret_cast<u64>(entries))) % 16 == 0) {
    close_up_pieces(reinterpret_cast<Words*>(entries), start, path, buffers, slots, heads, length, size / 16, rows,
                    columns);
  } else {
    close_up_pieces(entries, start, path, buffers, slots, heads, length, size, rows, columns);
  }
}
