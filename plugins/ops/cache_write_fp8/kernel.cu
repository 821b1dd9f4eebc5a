// CacheWriteFp8: see reference.py. A grid-stride loop over k, then v; each thread converts 16 bytes at a time. Outputs
// alias the input caches, so only the new positions are written.

namespace peagle {

// Converts the elements in 16 bytes to E4M3 codes.
template <class Format>
__device__ inline void write_codes(unsigned char* to, Words from, float scale) {
  for (int i = 0; i < Format::kPerWords; i += 4) {
    float x[4];
    for (int j = 0; j < 4; ++j) {
      x[j] = Format::first(from) / scale;
      Format::drop_first(from);
    }
    *reinterpret_cast<u32*>(to + i) = two_to_e4m3(x[0], x[1]) | two_to_e4m3(x[2], x[3]) << 16;
  }
}

template <class Format>
__device__ inline void cache_write(const typename Format::Raw* k, const typename Format::Raw* v, const i64* start,
                                   const float* k_scale, const float* v_scale, int batch, int heads, int width,
                                   int length, int size, unsigned char* k_out, unsigned char* v_out) {
  const u64 addresses = reinterpret_cast<u64>(k) | reinterpret_cast<u64>(v) | reinterpret_cast<u64>(k_out) |
                     reinterpret_cast<u64>(v_out);
  const bool is_vectorized = size % Format::kPerWords == 0 && addresses % 16 == 0;
  const u32 step = is_vectorized ? Format::kPerWords : 1;
  const u32 pieces_per_head = size / step;  // of one head in one column
  const u32 count = pieces_per_head * width * heads * batch;
  const float scales[2] = {*k_scale, *v_scale};
  const u32 stride = static_cast<u32>(batch + width) * block_size();  // the number of blocks in spec.py
  for (u64 next = static_cast<u32>(block_index()) * block_size() + thread_index(); next < 2ull * count;
       next += stride) {
    const bool is_value = next >= count;
    const u32 piece = static_cast<u32>(next) - (is_value ? count : 0);
    const u32 column = piece / pieces_per_head, row_head = column / width, row = row_head / heads;
    const i64 first = start[row], s = column % width;
    if (first >= length || first + s < 0 || first + s >= length) continue;
    const u32 offset = piece % pieces_per_head * step;
    const typename Format::Raw* from = (is_value ? v : k) + static_cast<i64>(column) * size + offset;
    unsigned char* to = (is_value ? v_out : k_out) + (static_cast<i64>(row_head) * length + first + s) * size + offset;
    if (is_vectorized) {
      write_codes<Format>(to, load_16_bytes(from), scales[is_value]);
    } else {
      *to = static_cast<unsigned char>(two_to_e4m3(Format::widen(*from) / scales[is_value], 0.0f));
    }
  }
}

}  // namespace peagle

#define PEAGLE_CACHE_WRITE(dtype, Format)                                                                              \
  extern "C" __global__ void __launch_bounds__(256) cache_write_fp8_##dtype(                                           \
      const unsigned char*, const unsigned char*, const peagle::Format::Raw* __restrict__ k,                           \
      const peagle::Format::Raw* __restrict__ v, const long long* __restrict__ start,                                  \
      const float* __restrict__ k_scale, const float* __restrict__ v_scale, int batch, int heads, int width,           \
      int length, int size, unsigned char* __restrict__ k_out, unsigned char* __restrict__ v_out) {                    \
    peagle::cache_write<peagle::Format>(k, v, start, k_scale, v_scale, batch, heads, width, length, size, k_out,       \
                                        v_out);                                                                        \
  }

PEAGLE_CACHE_WRITE(float32, Float32)
PEAGLE_CACHE_WRITE(float16, Float16)
PEAGLE_CACHE_WRITE(bfloat16, BFloat16)
