// Attention over a cache: every column and every query head of a key head in one walk over its positions.
//
// Positions are taken in chunks of 64, counted from position 0 of the cache, whatever the window is.  Of a query and a
// chunk are made the top score m, the sum l of e^(score - m), and the sum o of e^(score - m) times the values.  A query's
// chunks are then put together in their order:  m' = max(m, m_c), l' = l e^(m - m') + l_c e^(m_c - m'), o' likewise, and
// y = o / l.  A sink is what is there before the first chunk: (m, l, o) = (sink, 1, 0).
//
// So the bits of a query's y depend on the query, its position and what the cache holds up to there.  Other queries, how
// the work is cut up, and what lies in the cache further on are in no operation of it.
//
// Of a tree of drafts, a column sees a path through the window.  Positions are counted along it, and what it sees of the
// window is put side by side for it alone: so it has the bits that it would have if its path were all of the window.  A
// column that sees all earlier ones, as in a chain, needs none of that: its path lies in the cache.

#include "chunks.h"
#include "kernel.h"
#include "paths.h"

namespace peagle {

class CachedAttention : public Kernel {
 public:
  CachedAttention(const CachedAttentionAttributes& attributes, const Node&)
      : attributes_(attributes), form_(attention::form_of(instructions())) {
    if (attributes.k_scale != 0.0f || attributes.v_scale != 0.0f) refuse("the CPU kernel does not support caches of E4M3 codes");
  }

  bool takes_views() const override { return true; }
  void shapes(const Inputs& inputs, Shape* outputs) const override {
    const Shape &q = inputs[kQ].shape, &cache = inputs[kKeyCache].shape;
    for (int i = kQ; i <= kValueCache; i++) {
      if (inputs[std::size_t(i)].shape.rank != 4) refuse("input %d has %d dimensions, not 4", i, inputs[std::size_t(i)].shape.rank);
    }
    const std::int64_t batch = q.sizes[0], heads = q.sizes[1], columns = q.sizes[2], size = q.sizes[3];
    const std::int64_t key_heads = cache.sizes[1], length = cache.sizes[2];
    if ((inputs[kKeyCache].type == ort::kInt8) != (attributes_.scaled != 0)) refuse("int8 caches require the attribute scaled, and other caches must not have it");
    if (attributes_.saturates != 0 && inputs[kKeyCache].type != ort::kFloat16) refuse("the attribute saturates requires float16 caches");
    const std::int64_t kept = size + (inputs[kKeyCache].type == ort::kInt8 ? kScaleBytes : 0);
    const Shape fresh = Shape().with(batch).with(key_heads).with(columns).with(size);
    if (inputs[kK].shape != fresh || inputs[kV].shape != fresh || cache != Shape().with(batch).with(key_heads).with(length).with(kept) ||
        inputs[kValueCache].shape != cache) {
      refuse("the shapes of keys, values and caches do not match queries of [%lld, %lld, %lld, %lld] and each other",
             static_cast<long long>(batch), static_cast<long long>(heads), static_cast<long long>(columns),
             static_cast<long long>(size));
    }
    if (key_heads < 1 || heads % key_heads != 0) {
      refuse("%lld query heads cannot share %lld key heads evenly", static_cast<long long>(heads),
             static_cast<long long>(key_heads));
    }
    if (size < 1 || size > attention::kMostNumbers) refuse("heads have size %lld, but must have size 1 to %d", static_cast<long long>(size), attention::kMostNumbers);
    const Tensor &start = inputs[kStart], &sinks = inputs[kSinks];
    if (start.shape != Shape().with(batch)) refuse("start must have one number for each of the %lld rows", static_cast<long long>(batch));
    if (sinks.is_there() && sinks.shape != Shape().with(heads)) {
      refuse("sinks must have one number for each of the %lld heads", static_cast<long long>(heads));
    }
    const Tensor& ancestors = inputs[kAncestors];
    if (ancestors.is_there() && ancestors.shape != Shape().with(batch).with(columns).with(columns)) {
      refuse("ancestors must have a matrix for each of the %lld rows, over %lld columns", static_cast<long long>(batch),
             static_cast<long long>(columns));
    }
    outputs[0] = Shape().with(batch).with(columns).with(heads).with(size);
  }

  std::unique_ptr<Run> start(const Inputs& inputs, const Outputs& outputs) const override {
    return std::unique_ptr<Run>(new Walk(*this, inputs, outputs));
  }

 private:
  enum { kQ, kK, kV, kKeyCache, kValueCache, kStart, kSinks, kAncestors };

  // Either chunks are handed out, and who finishes the last of a key head puts them together; or, where there are many
  // columns, columns are, and each piece walks over all chunks by itself.
  class Walk : public Run {
   public:
    Walk(const CachedAttention& kernel, const Inputs& inputs, const Outputs& outputs)
        : form_(kernel.form_),
          scale_(kernel.attributes_.scale),
          softcap_(kernel.attributes_.softcap),
          window_(kernel.attributes_.window),
          saturates_(kernel.attributes_.saturates != 0),
          q_(inputs[kQ]),
          k_(inputs[kK]),
          v_(inputs[kV]),
          start_(inputs[kStart]),
          sinks_(inputs[kSinks].data<const float>()),
          y_(outputs[0].data<float>()),
          keys_(outputs[1].data<char>()),
          values_(outputs[2].data<char>()),
          kept_as_(outputs[1].type),
          heads_(inputs[kQ].shape.sizes[1]),
          columns_(inputs[kQ].shape.sizes[2]),
          size_(inputs[kQ].shape.sizes[3]),
          key_heads_(inputs[kKeyCache].shape.sizes[1]),
          length_(inputs[kKeyCache].shape.sizes[2]),
          position_bytes_(inputs[kKeyCache].shape.sizes[3] * std::int64_t(ort::size_of(kept_as_))),
          group_(heads_ / key_heads_),
          queries_(columns_ * group_),
          vectors_(int((size_ + kVector - 1) / kVector)),
          columns_at_once_(std::max<std::int64_t>(1, attention::kQueriesAtOnce / std::max<std::int64_t>(group_, 1))),
          paths_(inputs[kAncestors], columns_) {}

    void steer() override {
      const auto* starts = start_.data<const std::int64_t>();
      for (std::int64_t b = 0; b < start_.shape.sizes[0]; b++) {
        if (starts[b] >= 0 && starts[b] <= length_ - columns_) continue;
        refuse("row %lld: %lld positions from %lld do not fit in a cache of %lld", static_cast<long long>(b),
               static_cast<long long>(columns_), static_cast<long long>(starts[b]), static_cast<long long>(length_));
      }
      const std::int64_t batch = columns_ > 0 && heads_ > 0 ? start_.shape.sizes[0] : 0;
      std::int64_t chunks = 0;
      rows_.clear();
      for (std::int64_t b = 0; b < batch; b++) {
        Row row;
        row.start = starts[b];
        row.first_chunk = first_of(row.start) / attention::kChunk;
        row.chunks = (row.start + columns_ - 1) / attention::kChunk + 1 - row.first_chunk;
        row.before = chunks;
        row.is_tree = paths_.find(b, batch);
        chunks += row.chunks;
        rows_.push_back(row);
      }
      const std::int64_t blocks = batch * key_heads_ * column_blocks();
      kept_numbers_ = chunks * key_heads_ * queries_ * attention::Attended::numbers(vectors_);
      by_chunks_ = queries_ <= 2 * attention::kQueriesAtOnce || (blocks < kFewBlocks && kept_numbers_ <= kMostKept);
      if (!by_chunks_ || batch == 0) return;
      pieces_ = chunks * key_heads_;
      if (left_ == nullptr) left_.reset(new std::atomic<std::int64_t>[std::size_t(batch * key_heads_)]);
      for (std::int64_t b = 0; b < batch; b++) {
        for (std::int64_t h = 0; h < key_heads_; h++) left_[std::size_t(b * key_heads_ + h)] = rows_[std::size_t(b)].chunks;
      }
    }

    std::size_t scratch_bytes() const override { return by_chunks_ ? std::size_t(kept_numbers_) * sizeof(float) : 0; }
    void use_scratch(void* scratch) override { kept_ = static_cast<float*>(scratch); }
    int phases() const override { return by_chunks_ ? 1 : 2; }
    std::size_t pieces(int phase) const override {
      if (by_chunks_) return std::size_t(pieces_);
      const std::int64_t walks = std::int64_t(rows_.size()) * key_heads_;
      return std::size_t(phase == 0 ? walks : walks * column_blocks());
    }
    void work(int phase, std::size_t piece) override {
      const auto at = std::int64_t(piece);
      if (by_chunks_) return attend_chunk(at);
      if (phase == 0) return write(at / key_heads_, at % key_heads_, 0, length_);
      const std::int64_t walk = at / column_blocks();
      attend_columns(walk / key_heads_, walk % key_heads_, at % column_blocks() * columns_at_once_);
    }

   private:
    static constexpr std::int64_t kFewBlocks = 8, kMostKept = 4 << 20;

    struct Row {
      std::int64_t start, first_chunk, chunks, before;
      bool is_tree;  // whether a column does not see an earlier one
    };

    // Where a column stands: behind all that it sees.
    std::int64_t position_of(std::int64_t b, std::int64_t column) const {
      const Row& row = rows_[std::size_t(b)];
      return row.start + (row.is_tree ? paths_.count(b, column) - 1 : column);
    }
    // Whether what a column sees of the window is not what lies in the cache.
    bool has_path(std::int64_t b, std::int64_t column) const {
      return rows_[std::size_t(b)].is_tree && paths_.count(b, column) <= column;
    }

    std::int64_t column_blocks() const { return (columns_ + columns_at_once_ - 1) / columns_at_once_; }
    std::int64_t first_of(std::int64_t position) const {
      return window_ > 0 ? std::max<std::int64_t>(0, position + 1 - window_) : 0;
    }
    // The numbers of one position.
    char* place(char* cache, std::int64_t b, std::int64_t h, std::int64_t position) const {
      return cache + ((b * key_heads_ + h) * length_ + position) * position_bytes_;
    }

    // New keys and values of the positions begin .. end - 1 go to the cache.
    void write(std::int64_t b, std::int64_t h, std::int64_t begin, std::int64_t end) const {
      const std::int64_t start = rows_[std::size_t(b)].start;
      const std::int64_t first = std::max(begin, start), last = std::min(end, start + columns_);
      if (first >= last) return;
      for (std::int64_t position = first; position < last; position++) {
        keep(given(k_, b, h, position - start), place(keys_, b, h, position));
        keep(given(v_, b, h, position - start), place(values_, b, h, position));
      }
    }

    // A position's numbers, as the cache keeps them.
    void keep(const float* numbers, char* to) const {
      float clamped[attention::kMostNumbers];
      if (saturates_) numbers = in_range(numbers, clamped);
      if (kept_as_ == ort::kFloat16) return form_.narrow(numbers, size_, reinterpret_cast<std::uint16_t*>(to));
      if (kept_as_ == ort::kInt8) return form_.narrow_codes(numbers, size_, reinterpret_cast<std::int8_t*>(to));
      std::memcpy(to, numbers, std::size_t(size_) * sizeof(float));
    }
    // The same, with finite numbers in the range of float16.
    const float* in_range(const float* numbers, float* room) const {
      constexpr float kMost = 65504.0f, kInfinity = std::numeric_limits<float>::infinity();
      for (std::int64_t i = 0; i < size_; i++) {
        const float number = numbers[i], high = number > kMost ? kMost : number, both = high < -kMost ? -kMost : high;
        room[i] = number_of(bits_of(number) & 0x7fffffffu) == kInfinity ? number : both;
      }
      return room;
    }
    // Positions of a head as they are kept, to numbers of whole vectors each.
    void widen(const char* from, std::int64_t positions, float* to) const {
      const std::int64_t stride = vectors_ * kVector;
      if (kept_as_ == ort::kInt8) {
        return form_.widen_codes(reinterpret_cast<const std::int8_t*>(from), positions, size_, stride, to);
      }
      if (kept_as_ == ort::kFloat16 && stride == size_) {
        return form_.widen(reinterpret_cast<const std::uint16_t*>(from), positions * size_, to);
      }
      for (; positions > 0; positions--, from += position_bytes_, to += stride) {
        if (kept_as_ == ort::kFloat16) form_.widen(reinterpret_cast<const std::uint16_t*>(from), size_, to);
        else std::memcpy(to, from, std::size_t(size_) * sizeof(float));
      }
    }

    // Query i of a key head: column i / group of its i % group-th query head.
    const float* query(std::int64_t b, std::int64_t h, std::int64_t i) const {
      return given(q_, b, h * group_ + i % group_, i / group_);
    }
    static const float* given(const Tensor& x, std::int64_t b, std::int64_t head, std::int64_t column) {
      return x.data<const float>() + b * x.strides[0] + head * x.strides[1] + column * x.strides[2];
    }
    float* output(std::int64_t b, std::int64_t h, std::int64_t i) const {
      return y_ + ((b * columns_ + i / group_) * heads_ + h * group_ + i % group_) * size_;
    }

    void attend_chunk(std::int64_t piece) {
      const std::int64_t b = row_of(piece / key_heads_);
      const Row& row = rows_[std::size_t(b)];
      // The chunks of a key head follow each other, as they do in the cache.
      const std::int64_t within = piece - row.before * key_heads_, h = within / row.chunks, at = within % row.chunks;
      const std::int64_t chunk = row.first_chunk + at;
      // Behind the last one of a head lie those of the next.
      const std::int64_t behind = at + 1 < row.chunks ? chunk + 1 : row.first_chunk;
      const char* next = place(keys_, b, h + (at + 1 < row.chunks ? 0 : 1), behind * attention::kChunk);
      write(b, h, chunk * attention::kChunk, (chunk + 1) * attention::kChunk);
      const std::int64_t stride = row.chunks * attention::Attended::numbers(vectors_);  // the chunks of a query lie together
      float* kept = kept_of(b, h) + at * attention::Attended::numbers(vectors_);
      for (std::int64_t i = 0; i < queries_; i += attention::kQueriesAtOnce) {
        const int count = int(std::min<std::int64_t>(attention::kQueriesAtOnce, queries_ - i));
        attend(b, h, chunk, i, count, next, kept + i * stride, stride);
      }
      if (left_[std::size_t(b * key_heads_ + h)].fetch_sub(1, std::memory_order_acq_rel) == 1) put_together(b, h);
    }
    std::int64_t row_of(std::int64_t chunk) const {
      std::size_t b = rows_.size() - 1;
      while (rows_[b].before > chunk) b--;
      return std::int64_t(b);
    }
    float* kept_of(std::int64_t b, std::int64_t h) const {
      const Row& row = rows_[std::size_t(b)];
      return kept_ + (row.before * key_heads_ + h * row.chunks) * queries_ * attention::Attended::numbers(vectors_);
    }

    void put_together(std::int64_t b, std::int64_t h) const {
      const Row& row = rows_[std::size_t(b)];
      const float* kept = kept_of(b, h);
      alignas(64) float numbers[attention::Attended::kSums + attention::kMostNumbers];
      auto* all = reinterpret_cast<attention::Attended*>(numbers);
      for (std::int64_t i = 0; i < queries_; i++) {
        const std::int64_t position = position_of(b, i / group_);
        begin(h, i, all);
        const std::int64_t first = first_of(position) / attention::kChunk;
        const std::int64_t at = i * row.chunks + first - row.first_chunk, numbers = attention::Attended::numbers(vectors_);
        form_.add(kept + at * numbers, position / attention::kChunk + 1 - first, numbers, vectors_, all);
        form_.finish(*all, size_, output(b, h, i));
      }
    }
    // What there is before the first chunk.
    void begin(std::int64_t h, std::int64_t i, attention::Attended* all) const {
      all->top = sinks_ != nullptr ? sinks_[h * group_ + i % group_] : attention::kMinusInfinity;
      all->total = sinks_ != nullptr ? 1.0f : 0.0f;
      std::fill_n(all->sums(), vectors_ * kVector, 0.0f);
    }

    void attend_columns(std::int64_t b, std::int64_t h, std::int64_t column) const {
      const std::int64_t begin_at = column * group_;
      const std::int64_t end_at = std::min(columns_, column + columns_at_once_) * group_;
      for (std::int64_t i = begin_at; i < end_at; i += attention::kQueriesAtOnce) {  // more than once where a group is large
        const int count = int(std::min<std::int64_t>(attention::kQueriesAtOnce, end_at - i));
        alignas(64) float all[attention::kQueriesAtOnce * (attention::Attended::kSums + attention::kMostNumbers)];
        alignas(64) float one[attention::kQueriesAtOnce * (attention::Attended::kSums + attention::kMostNumbers)];
        const auto at = [&](float* numbers, int query) {
          return reinterpret_cast<attention::Attended*>(numbers + query * attention::Attended::numbers(vectors_));
        };
        for (int query = 0; query < count; query++) begin(h, i + query, at(all, query));
        std::int64_t first = position_of(b, i / group_), last = first;
        for (int query = 1; query < count; query++) {
          const std::int64_t position = position_of(b, (i + query) / group_);
          first = std::min(first, position);
          last = std::max(last, position);
        }
        for (std::int64_t chunk = first_of(first) / attention::kChunk; chunk <= last / attention::kChunk; chunk++) {
          attend(b, h, chunk, i, count, place(keys_, b, h, (chunk + 1) * attention::kChunk), one,
                 attention::Attended::numbers(vectors_));
          for (int query = 0; query < count; query++) {
            const std::int64_t position = position_of(b, (i + query) / group_);
            if (chunk < first_of(position) / attention::kChunk || chunk > position / attention::kChunk) continue;
            form_.add(&at(one, query)->top, 1, 0, vectors_, at(all, query));
          }
        }
        for (int query = 0; query < count; query++) form_.finish(*at(all, query), size_, output(b, h, i + query));
      }
    }

    // What `count` queries from `i` on make of a chunk, `stride` numbers apart; of those that see nothing of it, nothing.
    // `next` are the keys of the chunk that will come then: memory is the slowest here, so values come near during the
    // scores, and those during the sums.
    void attend(std::int64_t b, std::int64_t h, std::int64_t chunk, std::int64_t i, int count, const char* next,
                float* attended, std::int64_t stride) const {
      alignas(64) float scores[attention::kQueriesAtOnce * attention::kChunk];
      alignas(64) float tile[kVector * attention::kMostNumbers];
      alignas(64) float padded[attention::kQueriesAtOnce * attention::kMostNumbers];
      const std::int64_t begin = chunk * attention::kChunk, start = rows_[std::size_t(b)].start;
      const float* queries[attention::kQueriesAtOnce];
      int first[attention::kQueriesAtOnce], last[attention::kQueriesAtOnce];
      int lowest = attention::kChunk, highest = 0, all_from = 0, all_to = attention::kChunk;  // what one sees, and all do
      std::int64_t paths[attention::kQueriesAtOnce];  // a column with a path of its own, or -1
      std::int64_t column = i / group_, member = i % group_;
      for (int at = 0; at < count; at++) {
        if (at == 0 || member == 0) {
          const std::int64_t position = position_of(b, column);
          paths[at] = has_path(b, column) ? column : -1;
          first[at] = int(std::min<std::int64_t>(std::max<std::int64_t>(first_of(position) - begin, 0), attention::kChunk));
          last[at] = int(std::min<std::int64_t>(std::max<std::int64_t>(position + 1 - begin, 0), attention::kChunk));
          lowest = std::min(lowest, first[at]);
          highest = std::max(highest, last[at]);
          all_from = std::max(all_from, first[at]);
          all_to = std::min(all_to, last[at]);
        } else {
          paths[at] = paths[at - 1], first[at] = first[at - 1], last[at] = last[at - 1];
        }
        queries[at] = filled_up(given(q_, b, h * group_ + member, column), padded + at * vectors_ * kVector);
        if (++member == group_) member = 0, column++;
      }
      // Sixteen positions after the other, for the queries that see of them what lies in one place: of what is before the
      // window all of them, of the window those without a path, and those of one column.
      const auto walk = [&](char* cache, const Tensor& fresh, const auto& use) {
        for (int from = lowest / kVector * kVector; from < highest; from += kVector) {
          const bool is_before = begin + from + kVector <= start;
          for (int at = 0, end = 0; at < count; at = end) {
            end = is_before ? count : at + 1;
            while (end < count && paths[end] == paths[at]) end++;
            int one = at, behind = end;
            while (one < behind && last[one] <= from) one++;
            while (behind > one && first[behind - 1] >= from + kVector) behind--;
            if (one == behind) continue;
            if (is_before || paths[at] < 0) {
              use(from, one, behind, sixteen(cache, b, h, begin + from, begin + highest, tile));
            } else {
              use(from, one, behind, along_path(cache, fresh, b, h, paths[at], begin + from, begin + last[one], tile));
            }
          }
        }
      };
      // A few queries at a time, each with a part of the sixteen positions that will be wanted soon: they come near while
      // the queries work on others, and what is asked for all at once has to wait.
      const auto in_parts = [&](const char* wanted, int one, int behind, int most, const auto& use) {
        constexpr int kLine = 64;
        const int bytes = kVector * int(position_bytes_), part = (bytes / kLine / (behind - one) + 1) * kLine;
        const char* const end = wanted + bytes;
        for (int at = one; at < behind; at += most) {
          const int n = std::min(most, behind - at);
          for (const char* last = std::min(end, wanted + n * part); wanted < last; wanted += kLine) __builtin_prefetch(wanted);
          use(at, n);
        }
      };
      walk(keys_, k_, [&](int from, int one, int behind, const Positions& keys) {
        in_parts(place(values_, b, h, begin + from), one, behind, attention::kScoredAtOnce, [&](int at, int n) {
          form_.score(queries + at, n, keys, scale_, scores + at * attention::kChunk + from, attention::kChunk);
        });
      });
      form_.share_out({count, first, last, scores, attended, stride}, softcap_);
      for (int at = 0; at < count; at++) {
        std::fill_n(attended + at * stride + attention::Attended::kSums, vectors_ * kVector, 0.0f);
      }
      walk(values_, v_, [&](int from, int one, int behind, const Positions& values) {
        const bool is_for_all = all_from <= from && from + kVector <= all_to;
        in_parts(next + from * position_bytes_, one, behind, attention::kMixedAtOnce, [&](int at, int n) {
          const float* shares = scores + at * attention::kChunk + from;
          float* sums = attended + at * stride + attention::Attended::kSums;
          if (is_for_all) return form_.mix[n - 1](shares, attention::kChunk, values, 0, kVector, sums, int(stride));
          mix(shares, values, from, first + at, last + at, n, sums, stride);
        });
      });
    }
    // Adds sixteen positions to the sums of a few queries.  Those that all see are added together, what is before and
    // behind them one query at a time, so that nobody touches a position that it does not see.
    void mix(const float* shares, const Positions& values, int from, const int* first, const int* last, int count,
             float* sums, std::int64_t stride) const {
      int begins[attention::kMixedAtOnce], ends[attention::kMixedAtOnce], all_begin = 0, all_end = kVector;
      for (int n = 0; n < count; n++) {
        begins[n] = std::min(std::max(first[n] - from, 0), kVector);
        ends[n] = std::max(std::min(last[n] - from, kVector), begins[n]);
        all_begin = std::max(all_begin, begins[n]);
        all_end = std::min(all_end, ends[n]);
      }
      const auto alone = [&](int n, int begin, int end) {
        if (begin < end) form_.mix[0](shares + n * attention::kChunk, attention::kChunk, values, begin, end, sums + n * stride, int(stride));
      };
      const bool together = all_begin < all_end;
      for (int n = 0; n < count; n++) alone(n, begins[n], together ? all_begin : ends[n]);
      if (!together) return;
      form_.mix[count - 1](shares, attention::kChunk, values, all_begin, all_end, sums, int(stride));
      for (int n = 0; n < count; n++) alone(n, all_end, ends[n]);
    }

    // A query of whole vectors: itself, or a copy in `room`.
    const float* filled_up(const float* query, float* room) const {
      if (size_ % kVector == 0) return query;
      std::memcpy(room, query, std::size_t(size_) * sizeof(float));
      std::fill(room + size_, room + vectors_ * kVector, 0.0f);
      return room;
    }
    // Sixteen positions of a head's cache from `position` on, of whole vectors of float32: themselves, or copies in
    // `room`; those from `end` on may hold anything.
    Positions sixteen(char* cache, std::int64_t b, std::int64_t h, std::int64_t position, std::int64_t end,
                      float* room) const {
      const char* from = place(cache, b, h, position);
      const bool is_whole = size_ % kVector == 0, is_full = position + kVector <= length_;
      if (is_whole && is_full && kept_as_ == ort::kFloat32) return {reinterpret_cast<const float*>(from), size_, vectors_};
      const std::int64_t stride = vectors_ * kVector;
      if (!is_whole || !is_full) std::fill_n(room, kVector * stride, 0.0f);
      widen(from, is_full ? kVector : std::min<std::int64_t>(kVector, end - position), room);
      return {room, stride, vectors_};
    }
    // Sixteen positions that a column of a tree sees, from `position` to `end` - 1, and zeros: before the window those of
    // the cache, in it those of its path, as the cache keeps them, whether they are there yet or not.
    Positions along_path(char* cache, const Tensor& fresh, std::int64_t b, std::int64_t h, std::int64_t column,
                         std::int64_t position, std::int64_t end, float* room) const {
      alignas(64) char kept[attention::kMostNumbers * sizeof(float)];
      const std::int64_t stride = vectors_ * kVector, start = rows_[std::size_t(b)].start;
      const std::int32_t* path = paths_.of(b, column);
      std::fill_n(room, kVector * stride, 0.0f);
      for (std::int64_t p = position; p < std::min(end, position + kVector); p++) {
        const char* from = place(cache, b, h, p);
        if (p >= start) {
          keep(given(fresh, b, h, path[p - start]), kept);
          from = kept;
        }
        widen(from, 1, room + (p - position) * stride);
      }
      return {room, stride, vectors_};
    }

    const attention::Form& form_;
    const float scale_, softcap_;
    const std::int64_t window_;
    const bool saturates_;
    const Tensor q_, k_, v_, start_;
    const float* sinks_;
    float* y_;
    char *keys_, *values_;
    const int kept_as_;  // the type of caches
    const std::int64_t heads_, columns_, size_, key_heads_, length_, position_bytes_, group_, queries_;
    const int vectors_;
    const std::int64_t columns_at_once_;
    std::vector<Row> rows_;
    attention::Paths paths_;
    bool by_chunks_ = true;
    std::int64_t pieces_ = 0, kept_numbers_ = 0;
    float* kept_ = nullptr;  // by row, key head, query and chunk
    std::unique_ptr<std::atomic<std::int64_t>[]> left_;
  };

  CachedAttentionAttributes attributes_;
  attention::Form form_;
};

}  // namespace peagle
