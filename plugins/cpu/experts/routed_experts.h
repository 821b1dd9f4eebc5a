// Routed experts (mixture of experts) over packed matrices. Tokens are grouped by expert, so the matrices of an expert
// are read once, regardless of how many tokens chose it.
//
// The operations for a token and their order do not depend on the other tokens in the window; the outputs of its
// experts are added in the router's order. A row of y therefore depends, bit for bit, only on its row of x, its experts
// and its scores.
//
// A stack holds the tiles of one matrix per expert, contiguously. Its interface:
//   experts, rows, tiles   number of experts; rows and tiles of each
//   columns(), tile_bytes()
//   Rows, Number, width()  type of the left operand, of its elements, and elements per row
//   operand(count)         a left operand of this many rows, which uses no memory yet
//   load_row(x, rows, at)  converts a float32 row to row `at`
//   multiply(tile, columns, rows, first, last, y, stride)
//                          multiplies rows first .. last - 1 with a tile; y [last - first, columns]

#include "elementary.h"
#include "instructions.h"
#include "kernel.h"
#include "rounded_rows.h"

namespace peagle {

template <class Stack>
int columns_of_tile(const Stack& stack, std::int64_t tile) {
  return int(std::min<std::int64_t>(kTile, stack.rows - tile * kTile));
}

// Reinterprets a stack [experts, tiles, ...] as one matrix [experts * tiles, ...].
inline Tensor flatten_stack(const Tensor& tensor) {
  const Shape& shape = tensor.shape;
  if (shape.rank != 4) refuse("stacks of experts must have 4 dimensions, not %d", shape.rank);
  Shape result;
  result.rank = 3;
  result.sizes[0] = shape.sizes[0] * shape.sizes[1];
  result.sizes[1] = shape.sizes[2];
  result.sizes[2] = shape.sizes[3];
  return Tensor(result, tensor.type, tensor.address);
}
inline void require_tiles(std::int64_t tiles, std::int64_t rows) {
  if (rows < 1 || tiles != (rows + kTile - 1) / kTile) {
    refuse("%lld tiles per expert do not match %lld rows", static_cast<long long>(tiles), static_cast<long long>(rows));
  }
}

// inner = (up + beta) * gate * sigmoid(alpha * (gate + cubic * gate^3)); gate and up are interleaved.
struct Gate {
  float alpha, beta, limit, cubic;  // limit: infinity for none

  // Branch-free, so that compilers vectorize it. The cubic term is a template parameter, because 0 times infinity would
  // give NaN.
  template <bool kCubic>
  __attribute__((always_inline)) static inline void work(const Gate& gate, const float* __restrict pairs,
                                                         float* __restrict inner, int count) {
    const float alpha = gate.alpha, beta = gate.beta, limit = gate.limit, cubic = gate.cubic;
    for (int i = 0; i < count; i++) {
      float g = pairs[2 * i], up = pairs[2 * i + 1];
      g = g > limit ? limit : g;  // keeps NaN, because the comparison is false
      up = up > limit ? limit : up;
      up = up < -limit ? -limit : up;
      const float cubed = kCubic ? g + cubic * g * g * g : g;
      inner[i] = (up + beta) * (g / (1.0f + exponential(-(alpha * cubed))));
    }
  }
};

using GateFunction = void (*)(const Gate&, const float*, float*, int);
template <bool kCubic>
void gate_portable(const Gate& gate, const float* pairs, float* inner, int count) {
  Gate::work<kCubic>(gate, pairs, inner, count);
}
#ifdef PEAGLE_X86_64
template <bool kCubic>
PEAGLE_AVX2 void gate_avx2(const Gate& gate, const float* pairs, float* inner, int count) {
  Gate::work<kCubic>(gate, pairs, inner, count);
}
template <bool kCubic>
PEAGLE_AVX512_VNNI void gate_avx512(const Gate& gate, const float* pairs, float* inner, int count) {
  Gate::work<kCubic>(gate, pairs, inner, count);
}
#endif
template <bool kCubic>
GateFunction gate_function(Instructions instructions) {
#ifdef PEAGLE_X86_64
  if (instructions == Instructions::kAvx512Vnni) return gate_avx512<kCubic>;
  if (instructions >= Instructions::kAvx2) return gate_avx2<kCubic>;
#endif
  return gate_portable<kCubic>;
}

template <class Stack>
class RoutedExperts : public Kernel {
 public:
  // `bias_at` is the index of the optional input gate_up_bias; down_bias follows.
  RoutedExperts(Stack gate_up, Stack down, std::int64_t inner, Gate gate, std::size_t bias_at)
      : gate_up_(std::move(gate_up)),
        down_(std::move(down)),
        inner_(inner),
        gate_(gate),
        bias_at_(bias_at),
        gate_function_(gate.cubic != 0 ? gate_function<true>(instructions()) : gate_function<false>(instructions())) {
    if (gate_up_.experts != down_.experts || down_.columns() != inner_) {
      refuse("gate_up has %lld experts of %lld rows, but down has %lld experts of %lld columns",
             static_cast<long long>(gate_up_.experts), static_cast<long long>(gate_up_.rows),
             static_cast<long long>(down_.experts), static_cast<long long>(down_.columns()));
    }
  }

  void shapes(const Inputs& inputs, Shape* outputs) const override {
    const Shape &x = inputs[0].shape, &experts = inputs[1].shape, &scores = inputs[2].shape;
    if (x.rank != 2 || x.last() != gate_up_.columns()) {
      refuse("x has %lld columns, but gate_up has %lld", static_cast<long long>(x.last()),
             static_cast<long long>(gate_up_.columns()));
    }
    if (experts.rank != 2 || experts.sizes[0] != x.sizes[0] || scores != experts) {
      refuse("experts and scores must have a row for each of the %lld tokens", static_cast<long long>(x.sizes[0]));
    }
    require_bias(inputs[bias_at_], gate_up_.rows, "gate_up_bias");
    require_bias(inputs[bias_at_ + 1], down_.rows, "down_bias");
    outputs[0] = x.with_last(down_.rows);
  }
  std::unique_ptr<Run> start(const Inputs& inputs, const Outputs& outputs) const override {
    return std::unique_ptr<Run>(new Execution(*this, inputs, outputs[0]));
  }

 private:
  void require_bias(const Tensor& bias, std::int64_t rows, const char* name) const {
    if (!bias.is_there()) return;
    const Shape& shape = bias.shape;
    if (shape.rank != 2 || shape.sizes[0] != gate_up_.experts || shape.last() != rows) {
      refuse("%s must be [%lld, %lld]", name, static_cast<long long>(gate_up_.experts), static_cast<long long>(rows));
    }
  }

  // A choice is a pair of a token and one of its experts, numbered token by token. Its place is its position after
  // sorting by expert. Each chosen expert has a slot; its choices have the places first[slot] .. first[slot + 1] - 1.
  class Execution : public Run {
   public:
    Execution(const RoutedExperts& op, const Inputs& inputs, const Tensor& y)
        : op_(op),
          x_(inputs[0].data<const float>()),
          experts_(inputs[1].data<const std::int64_t>()),
          scores_(inputs[2].data<const float>()),
          gate_up_bias_(bias(inputs[op.bias_at_])),
          down_bias_(bias(inputs[op.bias_at_ + 1])),
          y_(y.data<float>()),
          tokens_(inputs[0].shape.sizes[0]),
          experts_per_token_(inputs[1].shape.sizes[1]),
          choices_(tokens_ * experts_per_token_),
          slots_(std::min(op.gate_up_.experts, choices_)),
          gate_up_chunks_(op.gate_up_),
          down_chunks_(op.down_) {}

    int phases() const override { return 6; }
    std::size_t pieces(int phase) const override {
      switch (phase) {
        case kLoad: return std::size_t(tokens_ + 1);
        case kGateUp: return std::size_t(slots_ * gate_up_chunks_.count);  // upper bound: as if every slot were used
        case kDown: return std::size_t(slots_ * down_chunks_.count);
        case kCombine: return std::size_t(tokens_);
        default: return std::size_t(choices_);
      }
    }
    std::size_t scratch_bytes() const override {
      Arrays arrays;
      return place(nullptr, &arrays);
    }
    void use_scratch(void* memory) override { place(static_cast<char*>(memory), &at_); }

    void work(int phase, std::size_t piece) override {
      const auto index = std::int64_t(piece);
      switch (phase) {
        case kLoad: return index == 0 ? group() : load_token(index - 1);
        case kGather: return gather_row(index);
        case kGateUp:
          return for_each_chunk(gate_up_chunks_, index, [this](auto slot, auto chunk) { gate_up(slot, chunk); });
        case kLoadInner: return load_inner(index);
        case kDown: return for_each_chunk(down_chunks_, index, [this](auto slot, auto chunk) { down(slot, chunk); });
        default: return combine(index);
      }
    }

   private:
    using Rows = typename Stack::Rows;
    using Number = typename Stack::Number;

    static const float* bias(const Tensor& tensor) {
      return tensor.is_there() ? tensor.data<const float>() : nullptr;
    }

    enum Phase { kLoad, kGather, kGateUp, kLoadInner, kDown, kCombine };

    struct Chunks {  // the tiles of one expert, in chunks of about kBytes
      static constexpr std::int64_t kBytes = 32 << 10;
      std::int64_t tiles, tiles_per_chunk, count;
      explicit Chunks(const Stack& stack)
          : tiles(stack.tiles),
            tiles_per_chunk(std::max<std::int64_t>(1, kBytes / stack.tile_bytes())),
            count((tiles + tiles_per_chunk - 1) / tiles_per_chunk) {}
    };

    struct Arrays {
      std::int64_t *counts, *first, *expert_of_slot, *slot_of_place, *choice_of_place, *place_of_choice;
      Number *x_rows, *sorted_rows, *inner_rows;
      float *inner, *out;  // [places, columns of down], [places, rows of down]
    };
    std::size_t place(char* memory, Arrays* arrays) const {
      std::size_t bytes = 0;
      const auto allocate = [&](auto** array, std::int64_t count) {
        constexpr std::size_t kLine = 64;
        *array = reinterpret_cast<typename std::remove_reference<decltype(*array)>::type>(memory + bytes);
        bytes += (std::size_t(count) * sizeof(**array) + kLine - 1) / kLine * kLine;
      };
      const std::int64_t x_width = op_.gate_up_.width(), inner_width = op_.down_.width();
      allocate(&arrays->counts, op_.gate_up_.experts);
      allocate(&arrays->first, slots_ + 1);
      allocate(&arrays->expert_of_slot, slots_);
      allocate(&arrays->slot_of_place, choices_);
      allocate(&arrays->choice_of_place, choices_);
      allocate(&arrays->place_of_choice, choices_);
      allocate(&arrays->x_rows, tokens_ * x_width);
      allocate(&arrays->sorted_rows, choices_ * x_width);
      allocate(&arrays->inner, choices_ * op_.inner_);
      allocate(&arrays->inner_rows, choices_ * inner_width);
      allocate(&arrays->out, choices_ * op_.down_.rows);
      return bytes;
    }

    // Sorts the choices by expert (counting sort). A choice of an invalid expert has place -1.
    void group() {
      const std::int64_t experts = op_.gate_up_.experts;
      std::fill(at_.counts, at_.counts + experts, 0);
      for (std::int64_t i = 0; i < choices_; i++) {
        if (is_valid(experts_[i])) at_.counts[experts_[i]]++;
      }
      used_slots_ = used_places_ = 0;
      for (std::int64_t expert = 0; expert < experts; expert++) {
        const std::int64_t count = at_.counts[expert];
        at_.counts[expert] = used_places_;  // from here on: the expert's next free place
        if (count == 0) continue;
        at_.expert_of_slot[used_slots_] = expert;
        at_.first[used_slots_] = used_places_;
        std::fill(at_.slot_of_place + used_places_, at_.slot_of_place + used_places_ + count, used_slots_);
        used_places_ += count;
        used_slots_++;
      }
      at_.first[used_slots_] = used_places_;
      for (std::int64_t i = 0; i < choices_; i++) {
        at_.place_of_choice[i] = is_valid(experts_[i]) ? at_.counts[experts_[i]]++ : -1;
        if (at_.place_of_choice[i] >= 0) at_.choice_of_place[at_.place_of_choice[i]] = i;
      }
    }
    bool is_valid(std::int64_t expert) const { return expert >= 0 && expert < op_.gate_up_.experts; }

    void load_token(std::int64_t token) {
      op_.gate_up_.load_row(x_ + token * op_.gate_up_.columns(), all_tokens(), token);
    }
    Rows all_tokens() const {
      Rows rows = op_.gate_up_.operand(tokens_);
      rows.use(at_.x_rows);
      return rows;
    }
    // Returns the part of `rows`, an array over all places, that belongs to a slot.
    Rows of_slot(Number* rows, const Stack& stack, std::int64_t slot) const {
      Rows result = stack.operand(choices_of(slot));
      result.use(rows + at_.first[slot] * stack.width());
      return result;
    }
    std::int64_t choices_of(std::int64_t slot) const { return at_.first[slot + 1] - at_.first[slot]; }

    void gather_row(std::int64_t at) {
      if (at >= used_places_) return;
      const std::int64_t width = op_.gate_up_.width(), token = at_.choice_of_place[at] / experts_per_token_;
      const std::int64_t slot = at_.slot_of_place[at], row = at - at_.first[slot];
      const Rows from = all_tokens(), to = of_slot(at_.sorted_rows, op_.gate_up_, slot);
      const Number* source = from.row(token);
      Number* target = to.row(row);
      for (std::int64_t i = 0; i < width; i++) target[i * to.stride(row)] = source[i * from.stride(token)];
    }

    // Executes one piece's share of the chunks of all used slots. The number of pieces is fixed before the choices are
    // known, as if every slot were used. Pieces split the chunks evenly by cost, so threads finish together however
    // unevenly the tokens chose.
    template <class Body>
    void for_each_chunk(const Chunks& chunks, std::int64_t piece, Body each) const {
      if (used_slots_ == 0) return;
      const std::int64_t pieces = slots_ * chunks.count, all = chunks.count * cost_before(used_slots_);
      const std::int64_t last = all * (piece + 1) / pieces;
      for (Chunk at = first_chunk(chunks, all * piece / pieces); at.slot < used_slots_ && at.cost < last;) {
        each(at.slot, at.index);
        at.cost += cost_before(at.slot + 1) - cost_before(at.slot);
        if (++at.index == chunks.count) at.slot++, at.index = 0;
      }
    }
    struct Chunk {
      std::int64_t slot, index, cost;  // cost: total of all earlier chunks
    };
    // Returns the first chunk whose earlier chunks cost at least `cost`.
    Chunk first_chunk(const Chunks& chunks, std::int64_t cost) const {
      std::int64_t slot = 0, behind = used_slots_;
      while (behind - slot > 1) {
        const std::int64_t middle = (slot + behind) / 2;
        (chunks.count * cost_before(middle) <= cost ? slot : behind) = middle;
      }
      const std::int64_t before = chunks.count * cost_before(slot),
                         slot_cost = cost_before(slot + 1) - cost_before(slot);
      const std::int64_t index = (cost - before + slot_cost - 1) / slot_cost;
      if (index < chunks.count) return {slot, index, before + index * slot_cost};
      return {slot + 1, 0, chunks.count * cost_before(slot + 1)};
    }
    // The cost of one chunk in every earlier slot, in rows: reading an expert costs as much as multiplying kLoadCost
    // rows.
    std::int64_t cost_before(std::int64_t slot) const {
      constexpr std::int64_t kLoadCost = 12;
      return at_.first[slot] + slot * kLoadCost;
    }

    void gate_up(std::int64_t slot, std::int64_t piece) {
      const Stack& stack = op_.gate_up_;
      const std::int64_t expert = at_.expert_of_slot[slot], tile = piece * gate_up_chunks_.tiles_per_chunk;
      const std::int64_t last = std::min(tile + gate_up_chunks_.tiles_per_chunk, gate_up_chunks_.tiles);
      const Rows rows = of_slot(at_.sorted_rows, stack, slot);
      for (std::int64_t from = 0; from < choices_of(slot); from += kStrip) {
        const std::int64_t count = std::min(choices_of(slot) - from, kStrip);
        for (std::int64_t each = tile; each < last; each++) {
          float pairs[kStrip * kTile];
          stack.multiply(expert * stack.tiles + each, kTile, rows, from, from + count, pairs, kTile);
          const int columns = columns_of_tile(stack, each);
          if (gate_up_bias_ != nullptr) {
            add_bias(gate_up_bias_ + expert * stack.rows + each * kTile, columns, count, pairs, kTile);
          }
          float gated[kStrip * kTile / 2];
          op_.gate_function_(op_.gate_, pairs, gated, int(count) * kTile / 2);
          float* inner = at_.inner + (at_.first[slot] + from) * op_.inner_ + each * kTile / 2;
          for (std::int64_t i = 0; i < count; i++) {
            std::memcpy(inner + i * op_.inner_, gated + i * kTile / 2, std::size_t(columns / 2) * sizeof(float));
          }
        }
      }
    }

    void load_inner(std::int64_t at) {
      if (at >= used_places_) return;
      const std::int64_t slot = at_.slot_of_place[at];
      op_.down_.load_row(at_.inner + at * op_.inner_, of_slot(at_.inner_rows, op_.down_, slot),
                     at - at_.first[slot]);
    }

    void down(std::int64_t slot, std::int64_t piece) {
      const Stack& stack = op_.down_;
      const std::int64_t expert = at_.expert_of_slot[slot], tile = piece * down_chunks_.tiles_per_chunk;
      const std::int64_t last = std::min(tile + down_chunks_.tiles_per_chunk, down_chunks_.tiles);
      const Rows rows = of_slot(at_.inner_rows, stack, slot);
      for (std::int64_t from = 0; from < choices_of(slot); from += kStrip) {
        const std::int64_t count = std::min(choices_of(slot) - from, kStrip);
        for (std::int64_t each = tile; each < last; each++) {
          float* out = at_.out + (at_.first[slot] + from) * stack.rows + each * kTile;
          const int columns = columns_of_tile(stack, each);
          stack.multiply(expert * stack.tiles + each, columns, rows, from, from + count, out, stack.rows);
          if (down_bias_ != nullptr) {
            add_bias(down_bias_ + expert * stack.rows + each * kTile, columns, count, out, stack.rows);
          }
        }
      }
    }

    static void add_bias(const float* bias, int columns, std::int64_t rows, float* y, std::int64_t stride) {
      for (std::int64_t row = 0; row < rows; row++) {
        for (int i = 0; i < columns; i++) y[row * stride + i] += bias[i];
      }
    }

    // Adds in the router's order, so the result does not depend on the places. An invalid expert gives NaN.
    void combine(std::int64_t token) {
      const std::int64_t width = op_.down_.rows;
      float* __restrict y = y_ + token * width;
      std::fill(y, y + width, 0.0f);
      for (std::int64_t choice = token * experts_per_token_; choice < (token + 1) * experts_per_token_; choice++) {
        if (at_.place_of_choice[choice] < 0) {
          std::fill(y, y + width, std::numeric_limits<float>::quiet_NaN());
          return;
        }
        const float* __restrict out = at_.out + at_.place_of_choice[choice] * width;
        const float score = scores_[choice];
        for (std::int64_t i = 0; i < width; i++) y[i] += score * out[i];
      }
    }

    const RoutedExperts& op_;
    const float* x_;
    const std::int64_t* experts_;
    const float *scores_, *gate_up_bias_, *down_bias_;
    float* y_;
    const std::int64_t tokens_, experts_per_token_, choices_, slots_;
    const Chunks gate_up_chunks_, down_chunks_;
    Arrays at_{};
    std::int64_t used_slots_ = 0, used_places_ = 0;
  };

  const Stack gate_up_, down_;
  const std::int64_t inner_;
  const Gate gate_;
  const std::size_t bias_at_;
  const GateFunction gate_function_;
};

template <class Attributes>
Gate gate_of(const Attributes& attributes) {
  return {attributes.alpha, attributes.beta,
          attributes.limit != 0 ? attributes.limit : std::numeric_limits<float>::infinity(), attributes.cubic};
}

}  // namespace peagle
