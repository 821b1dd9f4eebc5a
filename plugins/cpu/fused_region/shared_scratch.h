// Large memory that regions hand to each other.  They run one after the other, so a model of many regions needs it once.

#include "tensor.h"

namespace peagle {

class SharedScratch {
 public:
  // The smallest block that is large enough, or a new one.
  static std::unique_ptr<Scratch> taken(std::size_t bytes) {
    std::unique_ptr<Scratch> best;
    for (auto& each : places()) {
      std::unique_ptr<Scratch> found(each.exchange(nullptr));
      if (found != nullptr && found->bytes() >= bytes && (best == nullptr || found->bytes() < best->bytes())) {
        std::swap(found, best);
      }
      if (found != nullptr) keep(std::move(found));
    }
    return best != nullptr ? std::move(best) : std::unique_ptr<Scratch>(new Scratch(bytes));
  }
  // Of more blocks than there are places, some go.
  static void keep(std::unique_ptr<Scratch> block) {
    if (block == nullptr || block->bytes() == 0) return;
    for (auto& each : places()) {
      Scratch* none = nullptr;
      if (each.compare_exchange_strong(none, block.get())) {
        block.release();
        return;
      }
    }
    delete places()[next_place()++ % kPlaces].exchange(block.release());
  }
  static void clear() {
    for (auto& each : places()) delete each.exchange(nullptr);
  }
  // Who may hand memory on; the last one clears.
  static std::atomic<int>& users() {
    static std::atomic<int> count{0};
    return count;
  }

 private:
  static constexpr std::size_t kPlaces = 4;
  using Places = std::atomic<Scratch*>[kPlaces];
  static Places& places() {
    static Places all = {};
    return all;
  }
  static std::atomic<std::size_t>& next_place() {
    static std::atomic<std::size_t> count{0};
    return count;
  }
};

}  // namespace peagle
