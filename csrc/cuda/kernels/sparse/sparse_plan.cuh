// From a call of sparse.h to the bodies that do it, with their jobs and CTAs; `launch` as in
// dispatch.cuh.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "common/dtype.h"
#include "cuda/kernels/common/pieces.h"
#include "cuda/kernels/sparse/sparse.h"
#include "cuda/kernels/sparse/sparse_decode.cuh"
#include "cuda/kernels/sparse/sparse_draw.cuh"
#include "cuda/kernels/sparse/sparse_formats.h"
#include "cuda/kernels/sparse/sparse_write.cuh"

namespace jaxccomp::cuda {

// The standard deviations by which topk's sample is mistrusted; dgc's threshold is what it says.
inline constexpr double kSampleSpread = 3;

// The words of a dtype that sparse codecs have kernels for.
struct FloatWords {
  uint32_t infinity, nan;
};
inline FloatWords WordsOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat16: return {0x7c00, 0x7e00};
    case DType::kBFloat16: return {0x7f80, 0x7fc0};
    default: return {0x7f800000, 0x7fc00000};
  }
}

// Of a chunk that is to be encoded.
struct SparseRates {
  int64_t kept, sample_rank, room;
};
inline SparseRates RatesOf(const Sparse& codec, int64_t count) {
  const int64_t kept = sparse::KeptValues(codec.density, count);
  // Nothing is listed, nor does a threshold matter: only whether all values are finite.
  if (codec.format == SparseFormat::kRandomK) return {kept, 0, 0};
  const double spread = codec.format == SparseFormat::kTopK ? kSampleSpread : 0;
  const int64_t rank = sparse::SampleRank(count, kept, spread);
  if (count <= sparse::kSample) return {kept, rank, count};
  // More than twice what is to be expected. Where that is a large part of the chunk, a list saves
  // nothing.
  const int64_t wanted = (count >> sparse::kSampleBits) * (2 * rank + 16);
  const int64_t most = count / 4;
  return {kept, rank, sparse::kSample + (rank == 0 ? most : std::min(wanted, most))};
}

struct SparseEncodeMemory {
  SparseEncodeMemory(void* workspace, const Sparse& codec, DType dtype, int64_t count)
      : pieces(workspace) {
    const int64_t room = RatesOf(codec, count).room;
    state = pieces.Take<SelectState>(1);
    look_back = pieces.Take<uint64_t>(CeilDiv(count, sparse::kSubBlock));
    tiles = pieces.Take<TileList>(CeilDiv(count, kTileValues));
    offsets = pieces.Take<uint16_t>(room);
    words = pieces.Take<std::byte>(room * SizeBytes(dtype));
  }
  Pieces pieces;
  SelectState* state;
  uint64_t* look_back;
  TileList* tiles;
  uint16_t* offsets;
  std::byte* words;
};

struct SparseDecodeMemory {
  SparseDecodeMemory(void* workspace, int64_t count) : pieces(workspace) {
    head = pieces.Take<TableHead>(1);
    begins = pieces.Take<uint32_t>(CeilDiv(count, sparse::kSubBlock) + 1);
  }
  Pieces pieces;
  TableHead* head;
  uint32_t* begins;
};

inline Status CheckSparse(const Sparse& codec, DType dtype, DType into, int64_t count,
                          const void* values) {
  if (Status status = CheckSparseCount(codec, count); !status.ok()) return status;
  if (Status status = CheckSparseDType(codec, dtype); !status.ok()) return status;
  if (Alignment(values) >= SizeBytes(into)) return Status::Ok();
  return WrongSparseCall(codec, Code::kInvalidArgument,
                         "values of " + std::string(Name(into)) + " are not aligned to their size");
}

// Calls f(TypeTag<T>{}) with a type of the dtype's size: what is true of any is of its words.
template <typename F>
Status WithWords(DType dtype, F&& f) {
  return IsHalf(dtype) ? f(TypeTag<BFloat16>{}) : f(TypeTag<float>{});
}

inline int64_t SparseTiles(int64_t count) { return CeilDiv(count, kTileValues); }

// From a level of digits on.
template <typename T, int kLevel, typename Launch>
Status SearchAndWrite(const WriteTableJob& job, Launch& launch) {
  const int64_t sub_blocks = CeilDiv(job.select.count, sparse::kSubBlock);
  if constexpr (kLevel == kLevels<T>) {
    return launch(TypeTag<WriteTable<T>>{}, job, sub_blocks);
  } else {
    const Status status = launch(TypeTag<CountDigits<T, kLevel>>{}, job.select, sub_blocks);
    return status.ok() ? SearchAndWrite<T, kLevel + 1>(job, launch) : status;
  }
}

template <typename Launch>
Status DispatchSparseEncode(const SparseEncodeCall& call, Launch launch) {
  const Sparse& codec = call.codec;
  Status checked = CheckSparse(codec, call.dtype, call.dtype, call.count, call.values);
  if (!checked.ok() || call.count == 0) return checked;
  const SparseEncodeMemory memory(call.workspace, codec, call.dtype, call.count);
  const SparseRates rates = RatesOf(codec, call.count);
  const bool exact = codec.format == SparseFormat::kTopK;
  const int64_t most = exact ? rates.kept : sparse::MostValues(codec.density, call.count);
  const SelectJob select = {
      .values = static_cast<const std::byte*>(call.values),
      .alignment = Alignment(call.values),
      .count = call.count,
      .infinity = WordsOf(call.dtype).infinity,
      .sample_rank = static_cast<uint32_t>(rates.sample_rank),
      .kept = static_cast<uint32_t>(rates.kept),
      .most = static_cast<uint32_t>(most),
      .exact = exact,
      .state = memory.state,
      .tiles = memory.tiles,
      .look_back = memory.look_back,
      .room = static_cast<uint32_t>(rates.room),
      .listed_offsets = memory.offsets,
      .listed_words = memory.words,
  };
  const int64_t least = SparseLeastBytes(codec, call.dtype, call.count);
  Status status = WithWords(call.dtype, [&]<typename T>(TypeTag<T>) {
    Status begun = launch(TypeTag<BeginSelection<T>>{}, select, 1);
    if (!begun.ok()) return begun;
    return launch(TypeTag<ListCandidates<T>>{}, select, SparseTiles(call.count));
  });
  if (!status.ok()) return status;
  if (codec.format == SparseFormat::kRandomK) {
    return WithValues(call.dtype, [&]<typename T>(TypeTag<T>) {
      using Body = DrawValues<T>;
      const DrawValuesJob job = {
          select,         call.code, least, call.key, static_cast<uint64_t>(call.first),
          codec.unbiased, GreatestOf(call.dtype)};
      return launch(TypeTag<Body>{}, job, CeilDiv(rates.kept, int64_t{kThreads} * Body::kEach));
    });
  }
  const WriteTableJob job = {select, call.code, SparseNumberBytes(codec), least, call.size};
  return WithWords(call.dtype, [&]<typename T>(TypeTag<T>) {
    return SearchAndWrite<T, 0>(job, launch);
  });
}

// Starts f(TypeTag<T>{}, TypeTag<Into>{}): values are stored as they are, or added as floats.
template <bool kAdd, typename F>
Status WithStored(DType dtype, F&& f) {
  if constexpr (kAdd) {
    return WithValues(dtype, [&](auto type) { return f(type, TypeTag<float>{}); });
  } else {
    return WithWords(dtype, [&](auto type) { return f(type, type); });
  }
}

template <bool kAdd, typename Launch>
Status DispatchSparseDecode(const SparseDecodeCall& call, Launch launch) {
  const Sparse& codec = call.codec;
  Status checked = CheckSparse(codec, call.dtype, kAdd ? DType::kFloat32 : call.dtype, call.count,
                               call.values);
  if (!checked.ok() || call.count == 0) return checked;
  const CodeJob code = {call.code, call.code_bytes, call.count, call.status};
  const int64_t kept = sparse::KeptValues(codec.density, call.count);
  const auto decode = [&]<typename Places>(TypeTag<Places>, const typename Places::Job& places) {
    return WithStored<kAdd>(call.dtype, [&]<typename T, typename Into>(TypeTag<T>, TypeTag<Into>) {
      using Body = DecodeSparse<Places, T, Into, kAdd>;
      const typename Body::Job job = {places, static_cast<std::byte*>(call.values),
                                      Alignment(call.values), WordsOf(call.dtype).nan};
      return launch(TypeTag<Body>{}, job, SparseTiles(call.count));
    });
  };
  if (codec.format == SparseFormat::kRandomK) {
    return decode(TypeTag<FromKey>{}, DrawnJob{code, static_cast<uint32_t>(kept)});
  }
  const SparseDecodeMemory memory(call.workspace, call.count);
  const bool exact = codec.format == SparseFormat::kTopK;
  const int64_t most = exact ? kept : sparse::MostValues(codec.density, call.count);
  const TableJob table = {code,
                          SparseNumberBytes(codec),
                          SizeBytes(call.dtype),
                          SparseLeastBytes(codec, call.dtype, call.count),
                          static_cast<uint32_t>(most),
                          memory.head,
                          memory.begins};
  Status status = launch(TypeTag<ReadTable>{}, table, 1);
  return status.ok() ? decode(TypeTag<FromTable>{}, table) : status;
}

}  // namespace jaxccomp::cuda
