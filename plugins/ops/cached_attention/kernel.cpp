// Attention over a KV cache. One pass over a key head's cache serves all its query heads and all columns of the window.
//
// The cache is divided into chunks of 64 positions, counted from position 0, regardless of the window. For each query
// and chunk, the kernel computes a partial result (m, l, o): the maximum score m, the sum l of e^(score - m), and the
// sum o of e^(score - m) times the values. It then merges the query's partial results in order: m' = max(m, m_c),
// l' = l e^(m - m') + l_c e^(m_c - m'), o' likewise; finally y = o / l. An attention sink is the initial state
// (m, l, o) = (sink, 1, 0).
//
// The output y of a query therefore depends, bit for bit, only on the query, its position and the cache up to that
// position. Other queries, the division of the work and later cache entries do not affect any of its operations.
//
// In a tree of drafts, a column sees a path through the window. Positions are counted along this path, and the keys
// and values of the path are copied into contiguous memory for this column. The output therefore has the same bits as
// if the path were the whole window. A column that sees all earlier columns, as in a chain, reads the cache directly.

#include "chunks.h"
#include "kernel.h"
#include "paths.h"

namespace peagle {

class CachedAttention : public Kernel {
 public:
  CachedAttention(const CachedAttentionAttributes& attributes, const Node&)
      : attributes_(attributes), functions_(attention::functions_for(instructions())) {
    if (attributes.k_scale != 0.0f || attributes.v_scale != 0.0f) {
      refuse("the CPU kernel does not support caches of E4M3 codes");
    }
  }

  bool takes_views() const override { return true; }
  void shapes(const Inputs& inputs, Shape* outputs) const override {
    const Shape &q = inputs[kQ].shape, &cache = inputs[kKeyCache].shape;
    for (int i = kQ; i <= kValueCache; i++) {
      if (inputs[std::size_t(i)].shape.rank != 4) {
        refuse("input %d has %d dimensions, not 4", i, inputs[std::size_t(i)].shape.rank);
      }
    }
    const std::int64_t batch = q.sizes[0], heads = q.sizes[1], columns = q.sizes[2], size = q.sizes[3];
    const std::int64_t key_heads = cache.sizes[1], length = cache.sizes[2];
    if ((inputs[kKeyCache].type == ort::kInt8) != (attributes_.scaled != 0)) {
      refuse("int8 caches require the attribute scaled, and other caches must not have it");
    }
    if (attributes_.saturates != 0 && inputs[kKeyCache].type != ort::kFloat16) {
      refuse("the attribute saturates requires float16 caches");
    }
    const std::int64_t cached_size = size + (inputs[kKeyCache].type == ort::kInt8 ? kScaleBytes : 0);
    const Shape new_shape = Shape().with(batch).with(key_heads).with(columns).with(size);
    if (inputs[kK].shape != new_shape || inputs[kV].shape != new_shape ||
        cache != Shape().with(batch).with(key_heads).with(length).with(cached_size) ||
        inputs[kValueCache].shape != cache) {
      refuse("the shapes of keys, values and caches do not match queries of [%lld, %lld, %lld, %lld] and each other",
             static_cast<long long>(batch), static_cast<long long>(heads), static_cast<long long>(columns),
             static_cast<long long>(size));
    }
    if (key_heads < 1 || heads % key_heads != 0) {
      refuse("%lld query heads cannot share %lld key heads evenly", static_cast<long long>(heads),
             static_cast<long long>(key_heads));
    }
    if (size < 1 || size > attention::kMaxHeadSize) {
      refuse("heads have size %lld, but must have size 1 to %d", static_cast<long long>(size), attention::kMaxHeadSize);
    }
    const Tensor &start = inputs[kStart], &sinks = inputs[kSinks];
    if (start.shape != Shape().with(batch)) {
      refuse("start must have one number for each of the %lld rows", static_cast<long long>(batch));
    }
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
    return std::unique_ptr<Run>(new Execution(*this, inputs, outputs));
  }

 private:
  enum { kQ, kK, kV, kKeyCache, kValueCache, kStart, kSinks, kAncestors };

  // A piece is one chunk of a key head, and the thread that finishes the head's last chunk merges the partial results.
  // In a wide window, a piece is a block of columns instead, and processes all chunks.
  class Execution : public Run {
    using Partial = attention::PartialAttention;

   public:
    Execution(const CachedAttention& kernel, const Inputs& inputs, const Outputs& outputs)
        : functions_(kernel.functions_),
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
          cache_type_(outputs[1].type),
          heads_(inputs[kQ].shape.sizes[1]),
          columns_(inputs[kQ].shape.sizes[2]),
          size_(inputs[kQ].shape.sizes[3]),
          key_heads_(inputs[kKeyCache].shape.sizes[1]),
          length_(inputs[kKeyCache].shape.sizes[2]),
          position_bytes_(inputs[kKeyCache].shape.sizes[3] * std::int64_t(ort::size_of(cache_type_))),
          group_(heads_ / key_heads_),
          queries_(columns_ * group_),
          vectors_(int((size_ + kVector - 1) / kVector)),
          column_block_(std::max<std::int64_t>(1, attention::kQueryBlock / std::max<std::int64_t>(group_, 1))),
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
        row.first_chunk = first_visible(row.start) / attention::kChunk;
        row.chunks = (row.start + columns_ - 1) / attention::kChunk + 1 - row.first_chunk;
        row.chunks_before = chunks;
        row.is_tree = paths_.read_row(b, batch);
        chunks += row.chunks;
        rows_.push_back(row);
      }
      const std::int64_t blocks = batch * key_heads_ * column_blocks();
      partial_floats_ = chunks * key_heads_ * queries_ * Partial::size(vectors_);
      splits_by_chunk_ = queries_ <= 2 * attention::kQueryBlock ||
                         (blocks < kMinBlocks && partial_floats_ <= kMaxPartialFloats);
      if (!splits_by_chunk_ || batch == 0) return;
      pieces_ = chunks * key_heads_;
      if (chunks_left_ == nullptr) chunks_left_.reset(new std::atomic<std::int64_t>[std::size_t(batch * key_heads_)]);
      for (std::int64_t b = 0; b < batch; b++) {
        for (std::int64_t h = 0; h < key_heads_; h++) {
          chunks_left_[std::size_t(b * key_heads_ + h)] = rows_[std::size_t(b)].chunks;
        }
      }
    }

    std::size_t scratch_bytes() const override {
      return splits_by_chunk_ ? std::size_t(partial_floats_) * sizeof(float) : 0;
    }
    void use_scratch(void* scratch) override { partials_ = static_cast<float*>(scratch); }
    int phases() const override { return splits_by_chunk_ ? 1 : 2; }
    std::size_t pieces(int phase) const override {
      if (splits_by_chunk_) return std::size_t(pieces_);
      const std::int64_t heads = std::int64_t(rows_.size()) * key_heads_;  // key heads of all rows
      return std::size_t(phase == 0 ? heads : heads * column_blocks());
    }
    void work(int phase, std::size_t piece) override {
      const auto at = std::int64_t(piece);
      if (splits_by_chunk_) return attend_chunk(at);
      if (phase == 0) return write(at / key_heads_, at % key_heads_, 0, length_);
      const std::int64_t head = at / column_blocks();
      attend_columns(head / key_heads_, head % key_heads_, at % column_blocks() * column_block_);
    }

   private:
    static constexpr std::int64_t kMinBlocks = 8, kMaxPartialFloats = 4 << 20;
    static constexpr int kBlockFloats =
        attention::kQueryBlock * (Partial::kAccumulatorOffset + attention::kMaxHeadSize);

    struct Row {
      std::int64_t start, first_chunk, chunks, chunks_before;
      bool is_tree;  // a column does not see all earlier columns
    };

    // The position of a column: the number of positions that it sees before itself, along its path.
    std::int64_t position_of(std::int64_t b, std::int64_t column) const {
      const Row& row = rows_[std::size_t(b)];
      return row.start + (row.is_tree ? paths_.count(b, column) - 1 : column);
    }
    // Returns true if a column does not see all earlier columns, so it cannot read the window from the cache.
    bool has_path(std::int64_t b, std::int64_t column) const {
      return rows_[std::size_t(b)].is_tree && paths_.count(b, column) <= column;
    }

    std::int64_t column_blocks() const { return (columns_ + column_block_ - 1) / column_block_; }
    std::int64_t first_visible(std::int64_t position) const {
      return window_ > 0 ? std::max<std::int64_t>(0, position + 1 - window_) : 0;
    }
    // The address of a position in a cache.
    char* cache_at(char* cache, std::int64_t b, std::int64_t h, std::int64_t position) const {
      return cache + ((b * key_heads_ + h) * length_ + position) * position_bytes_;
    }

    // Writes the new keys and values at positions begin .. end - 1 to the caches.
    void write(std::int64_t b, std::int64_t h, std::int64_t begin, std::int64_t end) const {
      const std::int64_t start = rows_[std::size_t(b)].start;
      const std::int64_t first = std::max(begin, start), last = std::min(end, start + columns_);
      if (first >= last) return;
      for (std::int64_t position = first; position < last; position++) {
        store_position(input_row(k_, b, h, position - start), cache_at(keys_, b, h, position));
        store_position(input_row(v_, b, h, position - start), cache_at(values_, b, h, position));
      }
    }

    // Converts one position to the caches' type.
    void store_position(const float* numbers, char* to) const {
      float clamped[attention::kMaxHeadSize];
      if (saturates_) numbers = saturated(numbers, clamped);
      if (cache_type_ == ort::kFloat16) return functions_.narrow(numbers, size_, reinterpret_cast<std::uint16_t*>(to));
      if (cache_type_ == ort::kInt8) return functions_.narrow_codes(numbers, size_, reinterpret_cast<std::int8_t*>(to));
      std::memcpy(to, numbers, std::size_t(size_) * sizeof(float));
    }
    // Copies to `buffer`, and clamps finite numbers to the range of float16.
    const float* saturated(const float* numbers, float* buffer) const {
      constexpr float kMaxHalf = 65504.0f, kInfinity = std::numeric_limits<float>::infinity();
      for (std::int64_t i = 0; i < size_; i++) {
        const float number = numbers[i], upper = number > kMaxHalf ? kMaxHalf : number;
        const float clamped = upper < -kMaxHalf ? -kMaxHalf : upper;
        buffer[i] = number_of(bits_of(number) & 0x7fffffffu) == kInfinity ? number : clamped;
      }
      return buffer;
    }
    // Converts cached positions of a head to float32, padded to whole vectors.
    void widen(const char* from, std::int64_t positions, float* to) const {
      const std::int64_t stride = vectors_ * kVector;
      if (cache_type_ == ort::kInt8) {
        return functions_.widen_codes(reinterpret_cast<const std::int8_t*>(from), positions, size_, stride, to);
      }
      if (cache_type_ == ort::kFloat16 && stride == size_) {
        return functions_.widen(reinterpret_cast<const std::uint16_t*>(from), positions * size_, to);
      }
      for (; positions > 0; positions--, from += position_bytes_, to += stride) {
        if (cache_type_ == ort::kFloat16) functions_.widen(reinterpret_cast<const std::uint16_t*>(from), size_, to);
        else std::memcpy(to, from, std::size_t(size_) * sizeof(float));
      }
    }

    // Query i of key head h: column i / group of query head h * group + i % group.
    const float* query(std::int64_t b, std::int64_t h, std::int64_t i) const {
      return input_row(q_, b, h * group_ + i % group_, i / group_);
    }
    static const float* input_row(const Tensor& x, std::int64_t b, std::int64_t head, std::int64_t column) {
      return x.data<const float>() + b * x.strides[0] + head * x.strides[1] + column * x.strides[2];
    }
    float* output(std::int64_t b, std::int64_t h, std::int64_t i) const {
      return y_ + ((b * columns_ + i / group_) * heads_ + h * group_ + i % group_) * size_;
    }

    void attend_chunk(std::int64_t piece) {
      const std::int64_t b = row_of(piece / key_heads_);
      const Row& row = rows_[std::size_t(b)];
      // Consecutive pieces are consecutive chunks of a key head, in the order of the cache.
      const std::int64_t offset = piece - row.chunks_before * key_heads_;
      const std::int64_t h = offset / row.chunks, at = offset % row.chunks;
      const std::int64_t chunk = row.first_chunk + at;
      // The last chunk of a head is followed by the first chunk of the next head.
      const std::int64_t next_chunk = at + 1 < row.chunks ? chunk + 1 : row.first_chunk;
      const char* next = cache_at(keys_, b, h + (at + 1 < row.chunks ? 0 : 1), next_chunk * attention::kChunk);
      write(b, h, chunk * attention::kChunk, (chunk + 1) * attention::kChunk);
      // The chunks of a query are contiguous.
      const std::int64_t stride = row.chunks * Partial::size(vectors_);
      float* partials = partials_of(b, h) + at * Partial::size(vectors_);
      for (std::int64_t i = 0; i < queries_; i += attention::kQueryBlock) {
        const int count = int(std::min<std::int64_t>(attention::kQueryBlock, queries_ - i));
        attend(b, h, chunk, i, count, next, partials + i * stride, stride);
      }
      auto& chunks_left = chunks_left_[std::size_t(b * key_heads_ + h)];
      if (chunks_left.fetch_sub(1, std::memory_order_acq_rel) == 1) merge_chunks(b, h);
    }
    std::int64_t row_of(std::int64_t chunk) const {
      std::size_t b = rows_.size() - 1;
      while (rows_[b].chunks_before > chunk) b--;
      return std::int64_t(b);
    }
    float* partials_of(std::int64_t b, std::int64_t h) const {
      const Row& row = rows_[std::size_t(b)];
      return partials_ + (row.chunks_before * key_heads_ + h * row.chunks) * queries_ * Partial::size(vectors_);
    }

    void merge_chunks(std::int64_t b, std::int64_t h) const {
      const Row& row = rows_[std::size_t(b)];
      const std::int64_t size = Partial::size(vectors_);
      const float* partials = partials_of(b, h);
      for (std::int64_t i = 0; i < queries_; i += attention::kQueryBlock) {
        Merged merged(*this, b, h, i, std::min<std::int64_t>(attention::kQueryBlock, queries_ - i));
        for (std::int64_t chunk = merged.first_chunk; chunk <= merged.last_chunk; chunk++) {
          merged.merge(chunk, partials + (i * row.chunks + chunk - row.first_chunk) * size, row.chunks * size);
        }
        merged.finish();
      }
    }

    void attend_columns(std::int64_t b, std::int64_t h, std::int64_t column) const {
      const std::int64_t first_query = column * group_;
      const std::int64_t end_query = std::min(columns_, column + column_block_) * group_;
      for (std::int64_t i = first_query; i < end_query; i += attention::kQueryBlock) {  // repeats for large groups
        const int count = int(std::min<std::int64_t>(attention::kQueryBlock, end_query - i));
        alignas(64) float partials[kBlockFloats];
        Merged merged(*this, b, h, i, count);
        for (std::int64_t chunk = merged.first_chunk; chunk <= merged.last_chunk; chunk++) {
          const std::int64_t size = Partial::size(vectors_);
          attend(b, h, chunk, i, count, cache_at(keys_, b, h, (chunk + 1) * attention::kChunk), partials, size);
          merged.merge(chunk, partials, size);
        }
        merged.finish();
      }
    }

    // The merged results of up to kQueryBlock queries, from query i of a key head on.
    struct Merged {
      const Execution& execution;
      const std::int64_t b, h, i;
      const int count;
      const std::int64_t size;
      std::int64_t first_chunk, last_chunk;  // that any of the queries sees
      std::int64_t first[attention::kQueryBlock], last[attention::kQueryBlock];  // chunks that each query sees
      alignas(64) float numbers[kBlockFloats];

      Merged(const Execution& owner, std::int64_t row, std::int64_t head, std::int64_t query, std::int64_t queries)
          : execution(owner), b(row), h(head), i(query), count(int(queries)), size(Partial::size(owner.vectors_)) {
        for (int at = 0; at < count; at++) {
          const std::int64_t position = execution.position_of(b, (i + at) / execution.group_);
          first[at] = execution.first_visible(position) / attention::kChunk;
          last[at] = position / attention::kChunk;
          execution.initialize(h, i + at, result(at));
        }
        first_chunk = *std::min_element(first, first + count);
        last_chunk = *std::max_element(last, last + count);
      }
      Partial* result(int at) { return reinterpret_cast<Partial*>(numbers + at * size); }

      // Merges the partial results of a chunk, `stride` floats apart.
      void merge(std::int64_t chunk, const float* partials, std::int64_t stride) {
        attention::Merge merges[attention::kQueryBlock];
        int num_merges = 0;
        for (int at = 0; at < count; at++, partials += stride) {
          if (chunk < first[at] || chunk > last[at]) continue;
          merges[num_merges++] = {reinterpret_cast<const Partial*>(partials), result(at)};
        }
        execution.functions_.merge(merges, num_merges, execution.vectors_);
      }
      void finish() {
        for (int at = 0; at < count; at++) {
          execution.functions_.finish(*result(at), execution.size_, execution.output(b, h, i + at));
        }
      }
    };
    // Sets the state before the first chunk.
    void initialize(std::int64_t h, std::int64_t i, Partial* merged) const {
      merged->max = sinks_ != nullptr ? sinks_[h * group_ + i % group_] : attention::kMinusInfinity;
      merged->denominator = sinks_ != nullptr ? 1.0f : 0.0f;
      std::fill_n(merged->accumulator(), vectors_ * kVector, 0.0f);
    }

    // Computes the partial results of a chunk for `count` queries from `i` on, `stride` floats apart. Queries that see
    // nothing of the chunk get none. Memory bandwidth is the bottleneck, so the chunk's values are prefetched while
    // scores are computed, and the keys of the next chunk, `next`, while values are accumulated.
    void attend(std::int64_t b, std::int64_t h, std::int64_t chunk, std::int64_t i, int count, const char* next,
                float* partials, std::int64_t stride) const {
      alignas(64) float scores[attention::kQueryBlock * attention::kChunk];
      alignas(64) float tile[kVector * attention::kMaxHeadSize];
      alignas(64) float padded_queries[attention::kQueryBlock * attention::kMaxHeadSize];
      const std::int64_t begin = chunk * attention::kChunk, start = rows_[std::size_t(b)].start;
      const float* queries[attention::kQueryBlock];
      int first[attention::kQueryBlock], last[attention::kQueryBlock];
      int visible_begin = attention::kChunk, visible_end = 0;  // positions that at least one query sees
      int common_begin = 0, common_end = attention::kChunk;    // positions that all queries see
      std::int64_t paths[attention::kQueryBlock];  // the column if it has its own path, or -1
      std::int64_t column = i / group_, head = i % group_;
      for (int at = 0; at < count; at++) {
        if (at == 0 || head == 0) {
          const std::int64_t position = position_of(b, column);
          paths[at] = has_path(b, column) ? column : -1;
          first[at] = int(
              std::min<std::int64_t>(std::max<std::int64_t>(first_visible(position) - begin, 0), attention::kChunk));
          last[at] = int(std::min<std::int64_t>(std::max<std::int64_t>(position + 1 - begin, 0), attention::kChunk));
          visible_begin = std::min(visible_begin, first[at]);
          visible_end = std::max(visible_end, last[at]);
          common_begin = std::max(common_begin, first[at]);
          common_end = std::min(common_end, last[at]);
        } else {
          paths[at] = paths[at - 1], first[at] = first[at - 1], last[at] = last[at - 1];
        }
        queries[at] = padded_query(input_row(q_, b, h * group_ + head, column),
                                   padded_queries + at * vectors_ * kVector);
        if (++head == group_) head = 0, column++;
      }
      // Calls `process` for each block of 16 positions and each group of queries that read it from the same memory.
      // Before the window, that is all queries; in the window, the queries without their own path, or those of one
      // column.
      const auto for_each_block = [&](char* cache, const Tensor& window, const auto& process) {
        for (int from = visible_begin / kVector * kVector; from < visible_end; from += kVector) {
          const bool is_before = begin + from + kVector <= start;
          for (int at = 0, end = 0; at < count; at = end) {
            end = is_before ? count : at + 1;
            while (end < count && paths[end] == paths[at]) end++;
            int group_begin = at, group_end = end;
            while (group_begin < group_end && last[group_begin] <= from) group_begin++;
            while (group_end > group_begin && first[group_end - 1] >= from + kVector) group_end--;
            if (group_begin == group_end) continue;
            if (is_before || paths[at] < 0) {
              process(from, group_begin, group_end, cache_block(cache, b, h, begin + from, begin + visible_end, tile));
            } else {
              process(from, group_begin, group_end,
                      path_block(cache, window, b, h, paths[at], begin + from, begin + last[group_begin], tile));
            }
          }
        }
      };
      // Processes up to `max_queries` queries at a time. Before each call, prefetches a part of a later block of 16
      // positions, because prefetching the whole block at once would stall.
      const auto in_query_blocks = [&](const char* later, int group_begin, int group_end, int max_queries,
                                       const auto& process) {
        constexpr int kLine = 64;
        const int bytes = kVector * int(position_bytes_);
        const int part = (bytes / kLine / (group_end - group_begin) + 1) * kLine;
        const char* const end = later + bytes;
        for (int at = group_begin; at < group_end; at += max_queries) {
          const int n = std::min(max_queries, group_end - at);
          for (const char* last = std::min(end, later + n * part); later < last; later += kLine) {
            __builtin_prefetch(later, 0, 2);
          }
          process(at, n);
        }
      };
      for_each_block(keys_, k_, [&](int from, int group_begin, int group_end, const Positions& keys) {
        in_query_blocks(
            cache_at(values_, b, h, begin + from), group_begin, group_end, attention::kQueriesPerScore,
            [&](int at, int n) {
              functions_.score(queries + at, n, keys, scale_, scores + at * attention::kChunk + from,
                               attention::kChunk);
            });
      });
      functions_.partial_softmax({count, first, last, scores, partials, stride}, softcap_);
      for (int at = 0; at < count; at++) {
        std::fill_n(partials + at * stride + Partial::kAccumulatorOffset, vectors_ * kVector, 0.0f);
      }
      for_each_block(values_, v_, [&](int from, int group_begin, int group_end, const Positions& values) {
        const bool is_common = common_begin <= from && from + kVector <= common_end;
        in_query_blocks(
            next + from * position_bytes_, group_begin, group_end, attention::kQueriesPerAccumulate,
            [&](int at, int n) {
              const float* weights = scores + at * attention::kChunk + from;
              float* accumulator = partials + at * stride + Partial::kAccumulatorOffset;
              if (is_common) {
                return functions_.accumulate[n - 1](weights, attention::kChunk, values, 0, kVector, accumulator,
                                                    int(stride));
              }
              accumulate(weights, values, from, first + at, last + at, n, accumulator, stride);
            });
      });
    }
    // Accumulates a block of 16 positions for a few queries: the positions that all of them see together, the others
    // one query at a time, so that no query reads a position that it does not see.
    void accumulate(const float* weights, const Positions& values, int from, const int* first, const int* last,
                    int count, float* accumulator, std::int64_t stride) const {
      int begins[attention::kQueriesPerAccumulate], ends[attention::kQueriesPerAccumulate];
      int common_begin = 0, common_end = kVector;
      for (int n = 0; n < count; n++) {
        begins[n] = std::min(std::max(first[n] - from, 0), kVector);
        ends[n] = std::max(std::min(last[n] - from, kVector), begins[n]);
        common_begin = std::max(common_begin, begins[n]);
        common_end = std::min(common_end, ends[n]);
      }
      const auto accumulate_one = [&](int n, int begin, int end) {
        if (begin < end) {
          functions_.accumulate[0](weights + n * attention::kChunk, attention::kChunk, values, begin, end,
                                   accumulator + n * stride, int(stride));
        }
      };
      const bool overlaps = common_begin < common_end;
      for (int n = 0; n < count; n++) accumulate_one(n, begins[n], overlaps ? common_begin : ends[n]);
      if (!overlaps) return;
      functions_.accumulate[count - 1](weights, attention::kChunk, values, common_begin, common_end, accumulator,
                                       int(stride));
      for (int n = 0; n < count; n++) accumulate_one(n, common_end, ends[n]);
    }

    // Pads a query to whole vectors, in `buffer` if necessary.
    const float* padded_query(const float* query, float* buffer) const {
      if (size_ % kVector == 0) return query;
      std::memcpy(buffer, query, std::size_t(size_) * sizeof(float));
      std::fill(buffer + size_, buffer + vectors_ * kVector, 0.0f);
      return buffer;
    }
    // Returns 16 positions of a head's cache from `position` on as whole vectors of float32: the cache itself, or a
    // copy in `buffer`. Positions from `end` on may contain anything.
    Positions cache_block(char* cache, std::int64_t b, std::int64_t h, std::int64_t position, std::int64_t end,
                      float* buffer) const {
      const char* from = cache_at(cache, b, h, position);
      const bool is_whole = size_ % kVector == 0, is_full = position + kVector <= length_;
      if (is_whole && is_full && cache_type_ == ort::kFloat32) {
        return {reinterpret_cast<const float*>(from), size_, vectors_};
      }
      const std::int64_t stride = vectors_ * kVector;
      if (!is_whole || !is_full) std::fill_n(buffer, kVector * stride, 0.0f);
      widen(from, is_full ? kVector : std::min<std::int64_t>(kVector, end - position), buffer);
      return {buffer, stride, vectors_};
    }
    // Returns 16 positions along the path of a tree's column, from `position` on, with zeros from `end` on. Positions
    // before the window come from the cache. Positions in the window come from the input `window`, converted to the
    // caches' type, because another thread may not have written them yet.
    Positions path_block(char* cache, const Tensor& window, std::int64_t b, std::int64_t h, std::int64_t column,
                         std::int64_t position, std::int64_t end, float* buffer) const {
      alignas(64) char rounded[attention::kMaxHeadSize * sizeof(float)];
      const std::int64_t stride = vectors_ * kVector, start = rows_[std::size_t(b)].start;
      const std::int32_t* path = paths_.columns_of(b, column);
      std::fill_n(buffer, kVector * stride, 0.0f);
      for (std::int64_t p = position; p < std::min(end, position + kVector); p++) {
        const char* from = cache_at(cache, b, h, p);
        if (p >= start) {
          store_position(input_row(window, b, h, path[p - start]), rounded);
          from = rounded;
        }
        widen(from, 1, buffer + (p - position) * stride);
      }
      return {buffer, stride, vectors_};
    }

    const attention::Functions& functions_;
    const float scale_, softcap_;
    const std::int64_t window_;
    const bool saturates_;
    const Tensor q_, k_, v_, start_;
    const float* sinks_;
    float* y_;
    char *keys_, *values_;
    const int cache_type_;
    const std::int64_t heads_, columns_, size_, key_heads_, length_, position_bytes_, group_, queries_;
    const int vectors_;
    const std::int64_t column_block_;
    std::vector<Row> rows_;
    attention::AncestorPaths paths_;
    bool splits_by_chunk_ = true;
    std::int64_t pieces_ = 0, partial_floats_ = 0;
    float* partials_ = nullptr;  // by row, key head, query and chunk
    std::unique_ptr<std::atomic<std::int64_t>[]> chunks_left_;
  };

  CachedAttentionAttributes attributes_;
  attention::Functions functions_;
};

}  // namespace peagle
