// The kernels that make CRC-32C, run on the host, against common/crc32c.h.
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "check.h"
#include "common/crc32c.h"
#include "compute_cases.h"
#include "cuda/kernels/common/checksum.cuh"
#include "cuda_grid.h"
#include "placed.h"

namespace jaxccomp {
namespace {

using namespace testing;

uint32_t ChecksumHere(const std::byte* data, int64_t bytes, size_t behind) {
  std::vector<uint32_t> workspace(
      static_cast<size_t>(std::max<int64_t>(1, cuda::ChecksumChunks(bytes))));
  Placed to(Bytes(4), behind);
  CHECK_OK(cuda::DispatchChecksum(data, bytes, reinterpret_cast<uint32_t*>(to.data()),
                                  workspace.data(), LaunchHere{}));
  uint32_t checksum = 0;
  std::memcpy(&checksum, to.Take().data(), sizeof(checksum));
  return checksum;
}

void Compare(const Bytes& bytes, size_t first, size_t size) {
  const uint32_t expected = Crc32c(std::span(bytes).subspan(first, size));
  if (ChecksumHere(bytes.data() + first, static_cast<int64_t>(size), 0) == expected) return;
  CHECK_EQ("another checksum", std::to_string(first) + " + " + std::to_string(size));
}

TEST(cuda_checksum_of_a_known_message) {
  const char digits[] = "123456789";
  CHECK_EQ(ChecksumHere(reinterpret_cast<const std::byte*>(digits), 9, 0), 0xe3069283u);
  CHECK_EQ(ChecksumHere(reinterpret_cast<const std::byte*>(digits), 9, 3), 0xe3069283u);
  CHECK_EQ(ChecksumHere(nullptr, 0, 0), 0u);
}

TEST(cuda_checksum_of_all_short_lengths_at_any_address) {
  const Bytes bytes = ComputeValues(DType::kUInt8, 400, 1);
  for (size_t size = 0; size < 40; ++size) {
    for (size_t first = 0; first < 4; ++first) Compare(bytes, first, size);
  }
  for (size_t size = 40; size < 390; size += 13) Compare(bytes, size % 7, size);
}

TEST(cuda_checksum_around_whole_rounds) {
  const auto round = static_cast<size_t>(cuda::kCrcRoundBytes);
  const Bytes bytes = ComputeValues(DType::kUInt8, 4 * cuda::kCrcRoundBytes, 2);
  for (size_t rounds : {1, 2, 3}) {
    for (int64_t more : {-9, -8, -7, -4, -1, 0, 1, 4, 5, 1000}) {
      for (size_t first : {0, 3}) {
        Compare(bytes, first, rounds * round + static_cast<size_t>(more));
      }
    }
  }
}

TEST(cuda_checksum_of_random_cuts) {
  const Bytes bytes = ComputeValues(DType::kUInt8, 3 << 20, 3);
  for (uint64_t i = 0; i < 12; ++i) {
    const size_t first = Scrambled(2 * i) % bytes.size();
    Compare(bytes, first, Scrambled(2 * i + 1) % (bytes.size() - first));
  }
}

TEST(cuda_checksum_of_more_rounds_than_chunks) {
  const Bytes bytes(static_cast<size_t>(cuda::kCrcMostChunks * cuda::kCrcRoundBytes + 77777),
                    std::byte{0x5a});
  Compare(bytes, 1, bytes.size() - 1);
}

TEST(cuda_checksum_refuses_what_it_cannot_do) {
  uint32_t workspace[2] = {}, checksum = 0;
  CHECK(!cuda::DispatchChecksum(workspace, -1, &checksum, workspace, LaunchHere{}).ok());
  CHECK(!cuda::DispatchChecksum(workspace, 1, &checksum, reinterpret_cast<std::byte*>(workspace) + 1,
                                LaunchHere{})
             .ok());
}

}  // namespace
}  // namespace jaxccomp
