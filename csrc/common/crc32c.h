// CRC-32C (Castagnoli; RFC 3720, appendix B.4): the checksum of frames.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace jaxccomp {

// The checksum of `bytes` appended to data with the checksum `before`: Crc32c(b, Crc32c(a)) is for a, then b.
uint32_t Crc32c(std::span<const std::byte> bytes, uint32_t before = 0);

// The same without the processor's instruction for it; only for tests.
uint32_t GenericCrc32c(std::span<const std::byte> bytes, uint32_t before = 0);

}  // namespace jaxccomp
