// CacheWriteFp8: the numbers of k and v lie in a row, 16 bytes to a thread, over all blocks. The meaning is that of
// reference.py in this folder. Memory that no column goes to is not touched: an output is its input's buffer.

namespace peagle {

// 16 bytes of numbers as so many codes.
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
  const u64 places = reinterpret_cast<u64>(k) | reinterpret_cast<u64>(v) | reinterpret_cast<u64>(k_out) |
                     reinterpret_cast<u64>(v_out);
  const bool packed = size % Format::kPerWords == 0 && places % 16 == 0;
  const u32 step = packed ? Format::kPerWords : 1;
  const u32 pieces = size / step;  // of one head's numbers for one column
  const u32 count = pieces * width * heads * batch;
  const float scales[2] = {*k_scale, *v_scale};
  const u32 stride = static_cast<u32>(batch + width) * block_size();  // as many blocks as the spec says
  for (u64 next = static_cast<u32>(block_index()) * block_size() + thread_index(); next < 2ull * count; next += stride) {
    const bool second = next >= count;
    const u32 piece = static_cast<u32>(next) - (second ? count : 0);
    const u32 column = piece / pieces, row_head = column / width, row = row_head / heads;
    const i64 first = start[row], s = column % width;
    if (first >= length || first + s < 0 || first + s >= length) continue;
    const u32 offset = piece % pieces * step;
    const typename Format::Raw* from = (second ? v : k) + static_cast<i64>(column) * size + offset;
    unsigned char* to = (second ? v_out : k_out) + (static_cast<i64>(row_head) * length + first + s) * size + offset;
    if (packed) {
      write_codes<Format>(to, load_16_bytes(from), scales[second]);
    } else {
      *to = static_cast<unsigned char>(two_to_e4m3(Format::widen(*from) / scales[second], 0.0f));
    }
  }
}

}  // namespace peagle

#define PEAGLE_CACHE_WRITE(dtype, Format)                                                                             \
  extern "C" __global__ void __launch_bounds__(256) cache_write_fp8_##dtype(                                          \
      const unsigned char*, const unsigned char*, const peagle::Format::Raw* __restrict__ k,                          \
      const peagle::Format::Raw* __restrict__ v, const long long* __restrict__ start,                                 \
      const float* __restrict__ k_scale, const float* __restrict__ v_scale, int batch, int heads, int width,          \
      int length, int size, unsigned char* __restrict__ k_out, unsigned char* __restrict__ v_out) {                   \
    peagle::cache_write<peagle::Format>(k, v, start, k_scale, v_scale, batch, heads, width, length, size, k_out,      \
                                        v_out);                                                                       \
  }

PEAGLE_CACHE_WRITE(float32, Float32)
PEAGLE_CACHE_WRITE(float16, Float16)
PEAGLE_CACHE_WRITE(bfloat16, BFloat16)
