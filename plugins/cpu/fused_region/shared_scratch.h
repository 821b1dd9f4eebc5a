// A pool of large memory blocks that all regions of the process share. Regions run one after another, so a model with
// many regions needs the memory only once.

#include "tensor.h"

namespace peagle {

class SharedScratch {
 public:
  // Returns the smallest pooled block that is large enough, or a new one.
  static std::unique_ptr<Scratch> acquire(std::size_t bytes) {
    std::unique_ptr<Scratch> best;
    for (auto& each : slots()) {
      std::unique_ptr<Scratch> candidate(each.exchange(nullptr));
      if (candidate != nullptr && candidate->bytes() >= bytes &&
          (best == nullptr || candidate->bytes() < best->bytes())) {
        std::swap(candidate, best);
      }
      if (candidate != nullptr) release(std::move(candidate));
    }
    return best != nullptr ? std::move(best) : std::unique_ptr<Scratch>(new Scratch(bytes));
  }
  // Returns a block to the pool. If the pool is full, an older block is freed.
  static void release(std::unique_ptr<Scratch> block) {
    if (block == nullptr || block->bytes() == 0) return;
    for (auto& each : slots()) {
      Scratch* expected = nullptr;
      if (each.compare_exchange_strong(expected, block.get())) {
        block.release();
        return;
      }
    }
    delete slots()[next_victim()++ % kSlots].exchange(block.release());
  }
  static void clear() {
    for (auto& each : slots()) delete each.exchange(nullptr);
  }
  // The number of regions that use the pool; the last one clears it.
  static std::atomic<int>& num_users() {
    static std::atomic<int> count{0};
    return count;
  }

 private:
  static constexpr std::size_t kSlots = 4;
  using Slots = std::atomic<Scratch*>[kSlots];
  static Slots& slots() {
    static Slots all = {};
    return all;
  }
  static std::atomic<std::size_t>& next_victim() {
    static std::atomic<std::size_t> count{0};
    return count;
  }
};

}  // namespace peagle
