// Routed experts over packed matrices.  A run groups its tokens by expert, so that the matrices of an expert are read
// once, however many tokens chose it.
//
// A token meets the same operations in the same order, whoever else is in the window: its products are those of its
// stacks, its experts are added in the order in which the router names them.  So the bits of a row of y depend on that
// row of x, its experts and its scores, and on nothing else.
//
// A stack has one matrix for every expert, as tiles, one expert behind the other:
//   experts, rows, tiles   rows and tiles of one expert
//   columns(), tile_bytes()
//   Rows, Number, width()  the rows that are multiplied, and how many numbers one has
//   take(x, rows, at)      makes row `at` of a row of float32
//   multiply(tile, columns, rows, first, last, y, stride)
//                          rows first .. last - 1; y, of `columns` numbers, is of the first

#include "elementary.h"
#include "instructions.h"
#include "kernel.h"
#include "rounded_rows.h"

namespace peagle {

template <class Stack>
int columns_of_tile(const Stack& stack, std::int64_t tile) {
  return int(std::min<std::int64_t>(kTile, stack.rows - tile * kTile));
}

// The tensor [experts, tiles, ...] of a stack as that of one matrix [experts * tiles, ...].
inline Tensor one_matrix(const Tensor& tensor) {
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
    refuse("%lld tiles of an expert are not %lld rows", static_cast<long long>(tiles), static_cast<long long>(rows));
  }
}

// inner = (up + beta) * gate * sigmoid(alpha * (gate + cubic * gate^3)) of gate and up that alternate.
struct Gate {
  float alpha, beta, limit, cubic;  // limit: infinity is none

  // No branch and no memory but the rows': compilers turn this into vectors.  Without a cube none is computed: 0 times
  // infinity would be NaN.
  template <bool kCubic>
  __attribute__((always_inline)) static inline void work(const Gate& gate, const float* __restrict pairs,
                                                         float* __restrict inner, int count) {
    const float alpha = gate.alpha, beta = gate.beta, limit = gate.limit, cubic = gate.cubic;
    for (int i = 0; i < count; i++) {
      float of_gate = pairs[2 * i], up = pairs[2 * i + 1];
      of_gate = of_gate > limit ? limit : of_gate;  // a comparison with NaN is false, and leaves it
      up = up > limit ? limit : up;
      up = up < -limit ? -limit : up;
      const float bent = kCubic ? of_gate + cubic * of_gate * of_gate * of_gate : of_gate;
      inner[i] = (up + beta) * (of_gate / (1.0f + exponential(-(alpha * bent))));
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
  // A bias, if it is there, is the input at `bias_at`; that of down is the next one.
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
    return std::unique_ptr<Run>(new Window(*this, inputs, outputs[0]));
  }

 private:
  void require_bias(const Tensor& bias, std::int64_t rows, const char* name) const {
    if (!bias.is_there()) return;
    const Shape& shape = bias.shape;
    if (shape.rank != 2 || shape.sizes[0] != gate_up_.experts || shape.last() != rows) {
      refuse("%s must be [%lld, %lld]", name, static_cast<long long>(gate_up_.experts), static_cast<long long>(rows));
    }
  }

  // A choice is a pair of a token and one of its experts; they are numbered token by token.  Sorted by expert, each choice
  // has a place.  An expert that was chosen has a slot: its choices are at places first[slot] .. first[slot + 1] - 1.
  class Window : public Run {
   public:
    Window(const RoutedExperts& op, const Inputs& inputs, const Tensor& y)
        : op_(op),
          x_(inputs[0].data<const float>()),
          experts_(inputs[1].data<const std::int64_t>()),
          scores_(inputs[2].data<const float>()),
          gate_up_bias_(bias(inputs[op.bias_at_])),
          down_bias_(bias(inputs[op.bias_at_ + 1])),
          y_(y.data<float>()),
          tokens_(inputs[0].shape.sizes[0]),
          per_token_(inputs[1].shape.sizes[1]),
          choices_(tokens_ * per_token_),
          slots_(std::min(op.gate_up_.experts, choices_)),
          of_gate_up_(op.gate_up_),
          of_down_(op.down_) {}

    int phases() const override { return 6; }
    std::size_t pieces(int phase) const override {
      switch (phase) {
        case kTake: return std::size_t(tokens_ + 1);
        case kGateUp: return std::size_t(slots_ * of_gate_up_.count);  // as if every slot were used
        case kDown: return std::size_t(slots_ * of_down_.count);
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
      const auto number = std::int64_t(piece);
      switch (phase) {
        case kTake: return number == 0 ? group() : take_token(number - 1);
        case kSort: return sort_choice(number);
        case kGateUp: return share(of_gate_up_, number, [this](auto slot, auto part) { gate_up(slot, part); });
        case kTakeInner: return take_inner(number);
        case kDown: return share(of_down_, number, [this](auto slot, auto part) { down(slot, part); });
        default: return combine(number);
      }
    }

   private:
    using Rows = typename Stack::Rows;
    using Number = typename Stack::Number;

    static const float* bias(const Tensor& tensor) {
      return tensor.is_there() ? tensor.data<const float>() : nullptr;
    }

    enum Phase { kTake, kSort, kGateUp, kTakeInner, kDown, kCombine };

    struct Pieces {  // of one expert's tiles
      static constexpr std::int64_t kBytes = 32 << 10;
      std::int64_t tiles, tiles_at_once, count;
      explicit Pieces(const Stack& stack)
          : tiles(stack.tiles),
            tiles_at_once(std::max<std::int64_t>(1, kBytes / stack.tile_bytes())),
            count((tiles + tiles_at_once - 1) / tiles_at_once) {}
    };

    struct Arrays {
      std::int64_t *counts, *first, *expert_of_slot, *slot_of_place, *choice_of_place, *place_of_choice;
      Number *x_rows, *sorted_rows, *inner_rows;
      float *inner, *out;  // [places, columns of down], [places, rows of down]
    };
    std::size_t place(char* memory, Arrays* arrays) const {
      std::size_t bytes = 0;
      const auto take = [&](auto** array, std::int64_t count) {
        constexpr std::size_t kLine = 64;
        *array = reinterpret_cast<typename std::remove_reference<decltype(*array)>::type>(memory + bytes);
        bytes += (std::size_t(count) * sizeof(**array) + kLine - 1) / kLine * kLine;
      };
      const std::int64_t x_width = op_.gate_up_.width(), inner_width = op_.down_.width();
      take(&arrays->counts, op_.gate_up_.experts);
      take(&arrays->first, slots_ + 1);
      take(&arrays->expert_of_slot, slots_);
      take(&arrays->slot_of_place, choices_);
      take(&arrays->choice_of_place, choices_);
      take(&arrays->place_of_choice, choices_);
      take(&arrays->x_rows, tokens_ * x_width);
      take(&arrays->sorted_rows, choices_ * x_width);
      take(&arrays->inner, choices_ * op_.inner_);
      take(&arrays->inner_rows, choices_ * inner_width);
      take(&arrays->out, choices_ * op_.down_.rows);
      return bytes;
    }

    // A choice of an expert that does not exist has no place: -1.
    void group() {
      const std::int64_t experts = op_.gate_up_.experts;
      std::fill(at_.counts, at_.counts + experts, 0);
      for (std::int64_t i = 0; i < choices_; i++) {
        if (exists(experts_[i])) at_.counts[experts_[i]]++;
      }
      used_slots_ = used_places_ = 0;
      for (std::int64_t expert = 0; expert < experts; expert++) {
        const std::int64_t count = at_.counts[expert];
        at_.counts[expert] = used_places_;  // the next place of the expert, from here on
        if (count == 0) continue;
        at_.expert_of_slot[used_slots_] = expert;
        at_.first[used_slots_] = used_places_;
        std::fill(at_.slot_of_place + used_places_, at_.slot_of_place + used_places_ + count, used_slots_);
        used_places_ += count;
        used_slots_++;
      }
      at_.first[used_slots_] = used_places_;
      for (std::int64_t i = 0; i < choices_; i++) {
        at_.place_of_choice[i] = exists(experts_[i]) ? at_.counts[experts_[i]]++ : -1;
        if (at_.place_of_choice[i] >= 0) at_.choice_of_place[at_.place_of_choice[i]] = i;
      }
    }
    bool exists(std::int64_t expert) const { return expert >= 0 && expert < op_.gate_up_.experts; }

    void take_token(std::int64_t token) {
      op_.gate_up_.take(x_ + token * op_.gate_up_.columns(), all_tokens(), token);
    }
    Rows all_tokens() const {
      Rows rows(tokens_, op_.gate_up_.width());
      rows.use(at_.x_rows);
      return rows;
    }
    // The rows of a slot's choices, of all that are in `rows`.
    Rows of_slot(Number* rows, std::int64_t width, std::int64_t slot) const {
      Rows result(choices_of(slot), width);
      result.use(rows + at_.first[slot] * width);
      return result;
    }
    std::int64_t choices_of(std::int64_t slot) const { return at_.first[slot + 1] - at_.first[slot]; }

    void sort_choice(std::int64_t at) {
      if (at >= used_places_) return;
      const std::int64_t width = op_.gate_up_.width(), token = at_.choice_of_place[at] / per_token_;
      const std::int64_t slot = at_.slot_of_place[at], row = at - at_.first[slot];
      const Rows from = all_tokens(), to = of_slot(at_.sorted_rows, width, slot);
      const Number* source = from.row(token);
      Number* target = to.row(row);
      for (std::int64_t i = 0; i < width; i++) target[i * to.stride(row)] = source[i * from.stride(token)];
    }

    // Does what a piece has of all parts of all used slots.  Pieces are as many as if every slot were used; they share
    // the parts evenly, by what these cost: so that threads end together, however few experts the tokens chose, and
    // however unevenly.
    template <class Do>
    void share(const Pieces& parts, std::int64_t piece, Do each) const {
      if (used_slots_ == 0) return;
      const std::int64_t pieces = slots_ * parts.count, all = parts.count * cost_before(used_slots_);
      const std::int64_t last = all * (piece + 1) / pieces;
      for (Part at = first_part(parts, all * piece / pieces); at.slot < used_slots_ && at.cost < last;) {
        each(at.slot, at.part);
        at.cost += cost_before(at.slot + 1) - cost_before(at.slot);
        if (++at.part == parts.count) at.slot++, at.part = 0;
      }
    }
    struct Part {
      std::int64_t slot, part, cost;  // of all that is before it
    };
    // The first part before which there is this much or more.
    Part first_part(const Pieces& parts, std::int64_t cost) const {
      std::int64_t slot = 0, behind = used_slots_;
      while (behind - slot > 1) {
        const std::int64_t middle = (slot + behind) / 2;
        (parts.count * cost_before(middle) <= cost ? slot : behind) = middle;
      }
      const std::int64_t before = parts.count * cost_before(slot), one = cost_before(slot + 1) - cost_before(slot);
      const std::int64_t part = (cost - before + one - 1) / one;
      if (part < parts.count) return {slot, part, before + part * one};
      return {slot + 1, 0, parts.count * cost_before(slot + 1)};
    }
    // Of the slots before one, in rows: to read an expert costs as much as to multiply it with so many.
    std::int64_t cost_before(std::int64_t slot) const {
      constexpr std::int64_t kRead = 12;
      return at_.first[slot] + slot * kRead;
    }

    void gate_up(std::int64_t slot, std::int64_t piece) {
      const Stack& stack = op_.gate_up_;
      const std::int64_t expert = at_.expert_of_slot[slot], tile = piece * of_gate_up_.tiles_at_once;
      const std::int64_t last = std::min(tile + of_gate_up_.tiles_at_once, of_gate_up_.tiles);
      const Rows rows = of_slot(at_.sorted_rows, stack.width(), slot);
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

    void take_inner(std::int64_t at) {
      if (at >= used_places_) return;
      const std::int64_t slot = at_.slot_of_place[at];
      op_.down_.take(at_.inner + at * op_.inner_, of_slot(at_.inner_rows, op_.down_.width(), slot),
                     at - at_.first[slot]);
    }

    void down(std::int64_t slot, std::int64_t piece) {
      const Stack& stack = op_.down_;
      const std::int64_t expert = at_.expert_of_slot[slot], tile = piece * of_down_.tiles_at_once;
      const std::int64_t last = std::min(tile + of_down_.tiles_at_once, of_down_.tiles);
      const Rows rows = of_slot(at_.inner_rows, stack.width(), slot);
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

    // In the router's order, so that it does not matter where the choices are.
    void combine(std::int64_t token) {
      const std::int64_t width = op_.down_.rows;
      float* __restrict y = y_ + token * width;
      std::fill(y, y + width, 0.0f);
      for (std::int64_t choice = token * per_token_; choice < (token + 1) * per_token_; choice++) {
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
    const std::int64_t tokens_, per_token_, choices_, slots_;
    const Pieces of_gate_up_, of_down_;
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
