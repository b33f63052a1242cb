// The codec for bytes of values of unknown type, and XLA's operations before there is an engine.
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "codec/registry.h"
#include "xla_collectives/byte_codec.h"
#include "xla_collectives/collectives.h"

namespace jaxccomp {
namespace {

using Bytes = std::vector<std::byte>;

template <typename T>
Bytes Weights(size_t count) {
  std::mt19937 random(1);
  std::normal_distribution<double> normal(0, 0.02);
  std::vector<T> values(count);
  for (T& value : values) value = static_cast<T>(normal(random) * (std::is_integral_v<T> ? 1e4 : 1));
  Bytes bytes(count * sizeof(T));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

Result<Bytes> Encoded(const Codec& codec, DType dtype, const Bytes& bytes) {
  Workspace workspace;
  const auto count = static_cast<int64_t>(bytes.size()) / SizeBytes(dtype);
  Bytes code(static_cast<size_t>(codec.MaxEncodedBytes(dtype, count)));
  const Result<int64_t> size = codec.Encode(dtype, bytes.data(), count, code, CodingContext(workspace));
  if (!size.ok()) return size.status();
  code.resize(static_cast<size_t>(*size));
  return code;
}

Status Decoded(const Codec& codec, const Bytes& code, Bytes* bytes) {
  Workspace workspace;
  return codec.Decode(DType::kOpaque8, code, bytes->data(), std::ssize(*bytes), CodingContext(workspace));
}

TEST(byte_codec_chooses_the_dtype_with_the_shortest_encoding) {
  for (const char* spec : {"lossless", "zstd:shuffle=byte"}) {
    const auto typed = LookupCodec(spec);
    if (!typed.ok()) continue;   // without the library
    const std::shared_ptr<const Codec> codec = MakeByteCodec(*typed);
    CHECK_EQ(codec->traits().spec, (*typed)->traits().spec);
    const std::pair<DType, Bytes> cases[] = {{DType::kFloat32, Weights<float>(50000)},
                                             {DType::kFloat64, Weights<double>(50000)},
                                             {DType::kInt32, Weights<int32_t>(50000)},
                                             {DType::kInt64, Weights<int64_t>(50000)},
                                             {DType::kInt16, Weights<int16_t>(50000)}};
    for (const auto& [dtype, bytes] : cases) {
      const Result<Bytes> code = Encoded(*codec, DType::kOpaque8, bytes), best = Encoded(**typed, dtype, bytes);
      if (!CHECK_OK(code) || !CHECK_OK(best)) continue;
      // zstd, which looks for repetitions, finds few in a sample.
      CHECK(code->size() <= best->size() + best->size() / 10);
      Bytes decoded(bytes.size());
      CHECK_OK(Decoded(*codec, *code, &decoded));
      CHECK(decoded == bytes);
    }
  }
}

TEST(byte_codec_restores_bytes_of_every_length) {
  const std::shared_ptr<const Codec> codec = MakeByteCodec(*LookupCodec("lossless"));
  const Bytes values = Weights<double>(2000);
  for (size_t length = 0; length < 200; ++length) {
    for (const size_t size : {length, values.size() - length}) {
      const Bytes bytes(values.begin(), values.begin() + static_cast<ptrdiff_t>(size));
      const Result<Bytes> code = Encoded(*codec, DType::kOpaque8, bytes);
      if (!CHECK_OK(code)) continue;
      Bytes decoded(size);
      CHECK_OK(Decoded(*codec, *code, &decoded));
      CHECK(decoded == bytes);
    }
  }
}

TEST(byte_codec_decoder_refuses_invalid_bytes) {
  const std::shared_ptr<const Codec> codec = MakeByteCodec(*LookupCodec("lossless"));
  const Bytes bytes = Weights<float>(3000);
  const Bytes code = *Encoded(*codec, DType::kOpaque8, bytes);
  Bytes decoded(bytes.size());
  for (size_t size = 0; size < code.size(); size += 1 + size / 50) {
    CHECK(!Decoded(*codec, Bytes(code.begin(), code.begin() + static_cast<ptrdiff_t>(size)), &decoded).ok());
  }
  Bytes other = code;
  other[0] = std::byte{99};
  CHECK(!Decoded(*codec, other, &decoded).ok());
}

TEST(xla_comm_split_accepts_only_the_group_being_made) {
  const XlaTable& table = XlaFunctions();
  MpiHandle comm = 0;
  int size = 0, rank = -1;
  const char* error = table.comm_split(5, 0, &comm);
  CHECK(error != nullptr && std::string(error).find("begins with device 5") != std::string::npos);
  float value = 1, sum = 0;
  CHECK(table.allreduce(&value, &sum, 1, MpiHandleOf(DType::kFloat32), MpiHandleOf(ReduceOp::kSum), comm) != nullptr);
  CHECK(table.comm_free(comm) == nullptr);

  CHECK_OK(MakeXlaGroup({5, 7, 6}));
  CHECK(!MakeXlaGroup({1, 2}).ok());
  CHECK(table.comm_split(5, 2, &comm) == nullptr);
  CHECK(table.comm_size(comm, &size) == nullptr && size == 3);
  CHECK(table.comm_rank(comm, &rank) == nullptr && rank == 2);
  // While the group is made, an allreduce needs no other rank.
  CHECK(table.allreduce(&value, &sum, 1, MpiHandleOf(DType::kFloat32), MpiHandleOf(ReduceOp::kSum), comm) == nullptr);
  CHECK_EQ(EndXlaGroup(), std::vector<int>{2});
  MpiHandle late = 0;
  CHECK(table.comm_split(5, 1, &late) != nullptr);
  CHECK(table.comm_free(late) == nullptr);

  error = table.allgather(&value, &sum, -2, MpiHandleOf(DType::kOpaque8), comm);
  CHECK(error != nullptr && std::string(error).find("2 GiB") != std::string::npos);
  CHECK(table.allreduce(&value, &sum, 1, kMpiUnknown, MpiHandleOf(ReduceOp::kSum), comm) != nullptr);
  CHECK(table.allreduce(&value, &sum, 1, MpiHandleOf(DType::kFloat32), kMpiUnknown, comm) != nullptr);
  CHECK(table.comm_free(comm) == nullptr);
}

}  // namespace
}  // namespace jaxccomp
