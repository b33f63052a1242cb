#include "device/shared_handle.h"

#include <cstring>
#include <fstream>
#include <functional>
#include <span>
#include <type_traits>

#include "common/crc32c.h"

namespace jaxccomp {
namespace {

constexpr uint64_t kMagic = 0x3148534343414a;   // "JACCSH1"

// As it travels, between builds of one version on one host.
struct Packed {
  uint64_t magic = kMagic;
  SharedHandle handle;
  uint32_t checksum = 0;   // of all before it
  uint32_t zero = 0;
};
static_assert(std::is_trivially_copyable_v<Packed> && sizeof(Packed) == 128);

uint32_t ChecksumOf(const Packed& packed) {
  return Crc32c(std::as_bytes(std::span(&packed, 1)).first(offsetof(Packed, checksum)));
}

}  // namespace

uint64_t OwnHost() {
  static const uint64_t host = [] {
    std::string boot;
    std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
    return static_cast<uint64_t>(std::hash<std::string>()(boot));
  }();
  return host;
}

std::string WriteHandle(const SharedHandle& handle) {
  Packed packed;
  packed.handle = handle;
  packed.checksum = ChecksumOf(packed);
  return {reinterpret_cast<const char*>(&packed), sizeof(packed)};
}

Result<SharedHandle> ReadHandle(std::string_view bytes) {
  Packed packed;
  if (bytes.size() != sizeof(packed)) {
    return Status(Code::kDataLoss, "a handle of shared memory has " + std::to_string(bytes.size()) +
                                       " bytes and not " + std::to_string(sizeof(packed)));
  }
  std::memcpy(&packed, bytes.data(), sizeof(packed));
  if (packed.magic != kMagic || packed.checksum != ChecksumOf(packed) || packed.zero != 0 ||
      packed.handle.bytes <= 0) {
    return Status(Code::kDataLoss, "bytes arrived that are no handle of shared memory");
  }
  if (packed.handle.host != OwnHost()) {
    return Status(Code::kFailedPrecondition,
                  "a handle of shared memory is of another host; only ranks of one host reach each "
                  "other's devices");
  }
  return packed.handle;
}

}  // namespace jaxccomp
