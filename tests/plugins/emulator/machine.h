// Emulates a GPU on a CPU; replaces the first half of primitives.cuh. The GPU threads of a cluster are fibers of one
// CPU thread, each with its own stack. A barrier that a thread of its group never reaches is an error, not a hang.

#pragma once

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include <functional>
#include <memory>
#include <vector>

#define PEAGLE_EMULATED
#define PEAGLE_CLUSTER_OF(blocks)
#define PEAGLE_SHARED(Type, name) \
  static_assert(sizeof(Type) <= peagle::kSharedBytes); \
  Type& name = *reinterpret_cast<Type*>(peagle::current->block->shared)
#define __device__
#define __global__
#define __restrict__
#define __launch_bounds__(...)

namespace peagle {

using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i64 = long long;

struct alignas(16) Words {
  u32 word[4];
};

constexpr size_t kSharedBytes = 48 * 1024;  // available per block on every GPU without opt-in
constexpr size_t kStackBytes = 64 * 1024;

// Counts arrivals; a round ends when all threads have arrived. A thread that has exited never arrives.
struct Barrier {
  int size = 0, arrived = 0;
  u64 round = 0;
};

struct Warp {
  Barrier barrier;
  u64 value[32];
};

struct Block {
  int index, rank;
  Barrier barrier;
  std::vector<Warp> warps;
  alignas(16) unsigned char shared[kSharedBytes];
};

struct Fiber {
  Block* block;
  int thread;
  ucontext_t context;
  std::unique_ptr<unsigned char[]> stack;
  Barrier* waits_for = nullptr;
  u64 round = 0;
  bool done = false;
};

struct Machine {
  int threads = 0;
  std::vector<std::unique_ptr<Block>> blocks;  // of the cluster that runs
  std::vector<Fiber> fibers;
  Barrier barrier;
  ucontext_t scheduler;
  const std::function<void()>* kernel = nullptr;
};

inline Machine* machine = nullptr;
inline Fiber* current = nullptr;

inline void wait(Barrier& barrier) {
  const u64 round = barrier.round;
  if (++barrier.arrived == barrier.size) {
    barrier.arrived = 0;
    ++barrier.round;
    return;
  }
  current->waits_for = &barrier;
  current->round = round;
  swapcontext(&current->context, &machine->scheduler);
}

inline int thread_index() { return current->thread; }
inline int block_index() { return current->block->index; }
inline int block_size() { return machine->threads; }
inline int cluster_rank() { return current->block->rank; }
inline int cluster_size() { return static_cast<int>(machine->blocks.size()); }
inline void sync_block() { wait(current->block->barrier); }
inline void sync_cluster() { wait(machine->barrier); }

inline u64 peer_load(const u64& mine, int rank) {
  const auto offset = reinterpret_cast<const unsigned char*>(&mine) - current->block->shared;
  u64 value;
  memcpy(&value, machine->blocks.at(rank)->shared + offset, sizeof value);
  return value;
}

// Every lane contributes a value and reads all 32.
template <class Read>
inline auto exchange(u64 x, Read read) {
  Warp& warp = current->block->warps[current->thread / 32];
  warp.value[current->thread % 32] = x;
  wait(warp.barrier);
  const auto result = read(warp.value);
  wait(warp.barrier);
  return result;
}

inline u32 warp_max(u32 x) {
  return exchange(x, [](const u64* all) {
    u64 best = 0;
    for (int i = 0; i < 32; ++i) best = all[i] > best ? all[i] : best;
    return static_cast<u32>(best);
  });
}
inline u32 warp_min(u32 x) { return ~warp_max(~x); }
inline u64 shuffle_up(u64 x, int by) {
  const int lane = current->thread % 32;
  return exchange(x, [&](const u64* all) { return lane >= by ? all[lane - by] : x; });
}

inline float shuffle_across(float x, int bits) {
  const int lane = current->thread % 32;
  u32 mine;
  memcpy(&mine, &x, sizeof mine);
  const u32 theirs = exchange(mine, [&](const u64* all) { return static_cast<u32>(all[lane ^ bits]); });
  memcpy(&x, &theirs, sizeof x);
  return x;
}

inline void shared_add(u64& x, u64 by) { x += by; }
inline void shared_max(u64& x, u64 other) { x = other > x ? other : x; }

inline Words load_16_bytes(const void* from) {
  if (reinterpret_cast<size_t>(from) % 16 != 0) abort();  // a GPU would fault, too
  Words w;
  memcpy(&w, from, sizeof w);
  return w;
}

inline float fused(float a, float b, float c) { return fmaf(a, b, c); }

inline float bits_to_float(u32 bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}
inline u32 float_to_bits(float x) {
  u32 bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}
inline int leading_zeros(u32 x) { return x == 0 ? 32 : __builtin_clz(x); }

inline float half_to_float(u16 bits) {
  const float sign = bits >> 15 ? -1.0f : 1.0f;
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  if (exponent == 31) return fraction ? NAN : sign * INFINITY;
  return sign * (exponent ? ldexpf(static_cast<float>(1024 + fraction), exponent - 25) : ldexpf(fraction, -24));
}

inline float larger(float a, float b) { return a != a || b != b ? NAN : a > b ? a : b; }

template <class Widen>
inline u32 larger_pair(u32 a, u32 b, u32 nan, Widen widen) {
  u32 result = 0;
  for (int shift = 0; shift < 32; shift += 16) {
    const u16 x = a >> shift & 0xffff, y = b >> shift & 0xffff;
    const float wide_x = widen(x), wide_y = widen(y);
    result |= (wide_x != wide_x || wide_y != wide_y ? nan : wide_x > wide_y ? x : y) << shift;
  }
  return result;
}
inline u32 larger_halves(u32 a, u32 b) { return larger_pair(a, b, 0x7fff, half_to_float); }
inline u32 larger_bfloats(u32 a, u32 b) {
  return larger_pair(a, b, 0x7fff, [](u16 x) { return bits_to_float(static_cast<u32>(x) << 16); });
}

inline void run_fiber() {
  (*machine->kernel)();
  current->done = true;
  swapcontext(&current->context, &machine->scheduler);
}

// Runs `blocks` thread blocks in clusters of `cluster`. Returns 1 if a barrier deadlocks, otherwise 0.
inline int launch(int blocks, int threads, int cluster, const std::function<void()>& kernel) {
  Machine emulated;
  machine = &emulated;
  emulated.threads = threads;
  emulated.kernel = &kernel;
  for (int first = 0; first < blocks; first += cluster) {
    emulated.blocks.clear();
    emulated.barrier = {cluster * threads, 0, 0};
    emulated.fibers.resize(static_cast<size_t>(cluster) * threads);
    for (int rank = 0; rank < cluster; ++rank) {
      emulated.blocks.push_back(std::make_unique<Block>());
      Block& block = *emulated.blocks.back();
      block.index = first + rank;
      block.rank = rank;
      block.barrier.size = threads;
      block.warps.resize((threads + 31) / 32);
      for (Warp& warp : block.warps) warp.barrier.size = 32;
      memset(block.shared, 0xa5, sizeof block.shared);  // shared memory starts uninitialized
      for (int thread = 0; thread < threads; ++thread) {
        Fiber& fiber = emulated.fibers[rank * threads + thread];
        fiber.block = &block;
        fiber.thread = thread;
        fiber.done = false;
        fiber.waits_for = nullptr;
        if (!fiber.stack) fiber.stack = std::make_unique<unsigned char[]>(kStackBytes);
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = fiber.stack.get();
        fiber.context.uc_stack.ss_size = kStackBytes;
        fiber.context.uc_link = nullptr;
        makecontext(&fiber.context, run_fiber, 0);
      }
    }
    for (bool all_done = false; !all_done;) {
      bool progressed = false;
      all_done = true;
      for (Fiber& fiber : emulated.fibers) {
        if (fiber.done) continue;
        all_done = false;
        if (fiber.waits_for && fiber.waits_for->round == fiber.round) continue;
        fiber.waits_for = nullptr;
        current = &fiber;
        swapcontext(&emulated.scheduler, &fiber.context);
        progressed = true;
      }
      if (!progressed && !all_done) return 1;
    }
  }
  return 0;
}

// Converts to the pointer type of a kernel's parameter.
struct Pointer {
  void* to;
  template <class T>
  operator T*() const {
    return static_cast<T*>(to);
  }
};

}  // namespace peagle
