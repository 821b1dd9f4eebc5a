// Primitives of all kernels. sources.py prepends this file to every kernel.cu. It includes no headers, so NVRTC needs
// none. The first half, which only a GPU can execute, is disabled by PEAGLE_EMULATED: tests compile the kernels for a
// CPU with tests/plugins/emulator/machine.h in its place.

#ifndef PEAGLE_EMULATED

// Blocks of a cluster run concurrently and can read each other's shared memory. GPUs before SM 9.0 have no clusters.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define PEAGLE_CLUSTER_OF(blocks) __cluster_dims__(blocks, 1, 1)
#define PEAGLE_HAS_CLUSTERS 1
#else
#define PEAGLE_CLUSTER_OF(blocks)
#define PEAGLE_HAS_CLUSTERS 0
#endif

// Declares an object of a trivial type in shared memory.
#define PEAGLE_SHARED(Type, name)                                 \
  __shared__ __align__(16) unsigned char name##_bytes[sizeof(Type)]; \
  Type& name = *reinterpret_cast<Type*>(name##_bytes)

namespace peagle {

using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i64 = long long;

struct alignas(16) Words {
  u32 word[4];
};

__device__ inline int thread_index() { return threadIdx.x; }
__device__ inline int block_index() { return blockIdx.x; }
__device__ inline int block_size() { return blockDim.x; }

__device__ inline int cluster_rank() {
#if PEAGLE_HAS_CLUSTERS
  u32 rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
#else
  return 0;
#endif
}

__device__ inline int cluster_size() {
#if PEAGLE_HAS_CLUSTERS
  u32 size;
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  return size;
#else
  return 1;
#endif
}

__device__ inline void sync_block() { __syncthreads(); }

// A barrier for all threads of the cluster. Makes earlier writes to shared memory visible to all of them.
__device__ inline void sync_cluster() {
#if PEAGLE_HAS_CLUSTERS
  // Not .aligned, because the lanes of a warp may have diverged.
  asm volatile("barrier.cluster.arrive.release;\n\tbarrier.cluster.wait.acquire;" ::: "memory");
#else
  __syncthreads();
#endif
}

// Loads another block's copy of the shared-memory variable `mine`.
__device__ inline u64 peer_load(const u64& mine, int rank) {
#if PEAGLE_HAS_CLUSTERS
  const u32 here = static_cast<u32>(__cvta_generic_to_shared(&mine));
  u32 there;
  u64 value;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(here), "r"(rank));
  asm volatile("ld.shared::cluster.u64 %0, [%1];" : "=l"(value) : "r"(there) : "memory");
  return value;
#else
  return mine;
#endif
}

// Warp-wide; all 32 lanes must take part.
__device__ inline u32 warp_max(u32 x) { return __reduce_max_sync(0xffffffffu, x); }
__device__ inline u32 warp_min(u32 x) { return __reduce_min_sync(0xffffffffu, x); }
__device__ inline u64 shuffle_up(u64 x, int by) { return __shfl_up_sync(0xffffffffu, x, by); }
// Returns the value of the lane whose index differs in these bits (butterfly shuffle).
__device__ inline float shuffle_across(float x, int bits) { return __shfl_xor_sync(0xffffffffu, x, bits); }

// Atomics on shared memory.
__device__ inline void shared_add(u64& x, u64 by) { atomicAdd(&x, by); }
__device__ inline void shared_max(u64& x, u64 other) { atomicMax(&x, other); }

// Loads 16 aligned bytes of memory that is read-only while the kernel runs. Bypasses L1, because no block reads them
// again soon.
__device__ inline Words load_16_bytes(const void* from) {
  Words w;
  asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
      : "=r"(w.word[0]), "=r"(w.word[1]), "=r"(w.word[2]), "=r"(w.word[3])
      : "l"(from));
  return w;
}

__device__ inline float half_to_float(u16 bits) {
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
  return x;
}

// Maximum; NaN if either operand is NaN. The packed versions process two 16-bit values at once.
__device__ inline float larger(float a, float b) {
  float x;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(x) : "f"(a), "f"(b));
  return x;
}
__device__ inline u32 larger_halves(u32 a, u32 b) {
  u32 x;
  asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(x) : "r"(a), "r"(b));
  return x;
}
__device__ inline u32 larger_bfloats(u32 a, u32 b) {
  u32 x;
  asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(x) : "r"(a), "r"(b));
  return x;
}

// Converts two floats to E4M3 (see to_e4m3); the first result is in the low byte.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
#define PEAGLE_HAS_E4M3 1
__device__ inline u32 two_to_e4m3(float a, float b) {
  u16 codes;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(b), "f"(a));
  return codes;
}
#endif

// a * b + c, rounded once.
__device__ inline float fused(float a, float b, float c) { return __fmaf_rn(a, b, c); }

__device__ inline float bits_to_float(u32 bits) { return __uint_as_float(bits); }
__device__ inline u32 float_to_bits(float x) { return __float_as_uint(x); }
__device__ inline int leading_zeros(u32 x) { return __clz(x); }

}  // namespace peagle

#endif  // PEAGLE_EMULATED

namespace peagle {

template <class A>
__device__ inline A at_least(A x, A low) {
  return x < low ? low : x;
}
template <class A>
__device__ inline A at_most(A x, A high) {
  return x > high ? high : x;
}
template <class A>
__device__ inline A within(A x, A low, A high) {
  return at_least(at_most(x, high), low);
}

// Maps floats to unsigned sort keys. NaN sorts above +inf, and -0 equals +0.
__device__ inline u32 order(float x) {
  if (x != x) return 0xffffffffu;
  const u32 bits = float_to_bits(x + 0.0f);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ inline float unorder(u32 key) { return bits_to_float(key & 0x80000000u ? key & 0x7fffffffu : ~key); }

// Converts to E4M3: rounds to nearest, ties to even; saturates at +-448; every NaN becomes 0x7f.
__device__ inline u32 to_e4m3(float x) {
  const u32 bits = float_to_bits(x), size = bits & 0x7fffffffu, sign = bits >> 24 & 0x80u;
  if (size > 0x7f800000u) return 0x7fu;
  if (size >= 0x43e00000u) return sign | 0x7eu;  // 448
  if (size >= 0x3c800000u) {                     // 2^-6, the smallest normal E4M3; biases differ by 120
    const u32 rounded = (size + 0x7ffffu + (size >> 20 & 1)) >> 20;
    return sign | (rounded - (120u << 3));
  }
  // Subnormal: a multiple of 2^-9, which is one unit in the last place of floats from 2^14 on.
  return sign | (float_to_bits(bits_to_float(size) + 16384.0f) - float_to_bits(16384.0f));
}

#ifndef PEAGLE_HAS_E4M3
__device__ inline u32 two_to_e4m3(float a, float b) { return to_e4m3(a) | to_e4m3(b) << 8; }
#endif

// Converts to float16 or bfloat16 bits: rounds to nearest, ties to even; NaN stays NaN.
__device__ inline u32 to_half(float x) {
  const u32 bits = float_to_bits(x), size = bits & 0x7fffffffu, sign = bits >> 16 & 0x8000u;
  if (size > 0x7f800000u) return 0x7fffu;
  if (size >= 0x47800000u) return sign | 0x7c00u;  // 2^16
  if (size >= 0x38800000u) {                       // 2^-14, the smallest normal float16; biases differ by 112
    return sign | (((size + 0xfffu + (size >> 13 & 1)) >> 13) - (112u << 10));
  }
  // Subnormal: a multiple of 2^-24, which is one unit in the last place of floats from 2^-1 on.
  return sign | (float_to_bits(bits_to_float(size) + 0.5f) - float_to_bits(0.5f));
}
__device__ inline u32 to_bfloat(float x) {
  const u32 bits = float_to_bits(x);
  return (bits & 0x7fffffffu) > 0x7f800000u ? 0x7fffu : (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
}

__device__ inline void drop_first_half(Words& w) {
  for (int i = 0; i < 3; ++i) w.word[i] = w.word[i] >> 16 | w.word[i + 1] << 16;
  w.word[3] >>= 16;
}

// Float formats. `Raw` is the storage type; 16 bytes hold kPerWords elements, and `number` extracts one.
struct Float32 {
  using Raw = float;
  static constexpr int kPerWords = 4;
  static __device__ inline float widen(Raw x) { return x; }
  static __device__ inline Raw narrow(float x) { return x; }
  static __device__ inline float number(const Words& w, int i) { return bits_to_float(w.word[i]); }
  static __device__ inline float first(const Words& w) { return bits_to_float(w.word[0]); }
  static __device__ inline void drop_first(Words& w) {
    for (int i = 1; i < 4; ++i) w.word[i - 1] = w.word[i];
  }
  static __device__ inline float largest(const Words& w) {
    return larger(larger(bits_to_float(w.word[0]), bits_to_float(w.word[1])),
                  larger(bits_to_float(w.word[2]), bits_to_float(w.word[3])));
  }
};

struct Float16 {
  using Raw = u16;
  static constexpr int kPerWords = 8;
  static __device__ inline float widen(Raw x) { return half_to_float(x); }
  static __device__ inline Raw narrow(float x) { return static_cast<Raw>(to_half(x)); }
  static __device__ inline float number(const Words& w, int i) {
    return widen(w.word[i / 2] >> 16 * (i % 2) & 0xffffu);
  }
  static __device__ inline float first(const Words& w) { return widen(w.word[0] & 0xffffu); }
  static __device__ inline void drop_first(Words& w) { drop_first_half(w); }
  static __device__ inline float largest(const Words& w) {
    const u32 two = larger_halves(larger_halves(w.word[0], w.word[1]), larger_halves(w.word[2], w.word[3]));
    return larger(widen(two & 0xffffu), widen(two >> 16));
  }
};

struct BFloat16 {
  using Raw = u16;
  static constexpr int kPerWords = 8;
  static __device__ inline float widen(Raw x) { return bits_to_float(static_cast<u32>(x) << 16); }
  static __device__ inline Raw narrow(float x) { return static_cast<Raw>(to_bfloat(x)); }
  static __device__ inline float number(const Words& w, int i) {
    return widen(w.word[i / 2] >> 16 * (i % 2) & 0xffffu);
  }
  static __device__ inline float first(const Words& w) { return widen(w.word[0] & 0xffffu); }
  static __device__ inline void drop_first(Words& w) { drop_first_half(w); }
  static __device__ inline float largest(const Words& w) {
    const u32 two = larger_bfloats(larger_bfloats(w.word[0], w.word[1]), larger_bfloats(w.word[2], w.word[3]));
    return larger(widen(two & 0xffffu), widen(two >> 16));
  }
};

}  // namespace peagle
