#include "device/ipc/device_ipc.h"

#include <algorithm>
#include <cstring>

#include "common/crc32c.h"

namespace jaxccomp {
namespace {

constexpr uint64_t kMagic = 0x315246464f4c4a;   // "JLOFFR1"
constexpr uint64_t kMostMemories = 64;

struct OfferHead {
  uint64_t magic = kMagic;
  uint64_t checksum = 0;   // of all behind it
  int64_t least_bytes = 0;
  uint64_t count = 0;      // of shared memories: the length of each handle (uint64), and the handle
};

struct OfferRead {
  int64_t least_bytes = 0;
  std::vector<std::string> handles;
};

Result<OfferRead> ReadOffer(std::string_view bytes) {
  const Status broken(Code::kDataLoss, "bytes arrived that are no offer of shared memory");
  OfferHead head;
  if (bytes.size() < sizeof(head)) return broken;
  std::memcpy(&head, bytes.data(), sizeof(head));
  const auto checked = std::as_bytes(std::span(bytes)).subspan(offsetof(OfferHead, least_bytes));
  if (head.magic != kMagic || head.checksum != Crc32c(checked) || head.count > kMostMemories) {
    return broken;
  }
  OfferRead offer{head.least_bytes, {}};
  std::string_view rest = bytes.substr(sizeof(head));
  for (uint64_t i = 0; i < head.count; ++i) {
    uint64_t length = 0;
    if (rest.size() < sizeof(length)) return broken;
    std::memcpy(&length, rest.data(), sizeof(length));
    rest.remove_prefix(sizeof(length));
    if (length > rest.size()) return broken;
    offer.handles.emplace_back(rest.substr(0, static_cast<size_t>(length)));
    rest.remove_prefix(static_cast<size_t>(length));
  }
  if (!rest.empty()) return broken;
  return offer;
}

void Append(std::string* to, const void* from, size_t bytes) {
  to->append(static_cast<const char*>(from), bytes);
}

}  // namespace

// ---- Agreement ---------------------------------------------------------------------------

std::string DeviceIpc::Offer(std::span<Device* const> devices, int64_t memory_bytes) {
  if (least_bytes_ <= 0 || devices.empty()) return {};
  OfferHead head{.least_bytes = least_bytes_};
  std::string handles;
  for (Device* device : devices) {
    if (std::find(devices_.begin(), devices_.end(), device) == devices_.end()) {
      devices_.push_back(device);
      // Who has none to export may import all the same.
      arenas_.Provide(device, memory_bytes);
    }
  }
  for (const auto& arena : arenas_.all()) {
    const Result<std::string> handle = arena->device->Export(arena->base);
    // All or none: descriptors count them.
    if (!handle.ok()) return {};
    const uint64_t length = handle->size();
    Append(&handles, &length, sizeof(length));
    handles += *handle;
    ++head.count;
  }
  std::string offer;
  Append(&offer, &head, sizeof(head));
  offer += handles;
  head.checksum = Crc32c(std::as_bytes(std::span(offer)).subspan(offsetof(OfferHead, least_bytes)));
  std::memcpy(offer.data(), &head, sizeof(head));
  return offer;
}

Status DeviceIpc::OpenOne(const std::string& bytes, int process) {
  if (bytes.empty()) return {Code::kUnavailable, "it exports no memory"};
  const Result<OfferRead> offer = ReadOffer(bytes);
  if (!offer.ok()) return offer.status();
  if (offer->least_bytes != least_bytes_) {
    return {Code::kFailedPrecondition,
            "its option device_ipc_bytes is " + std::to_string(offer->least_bytes) + ", and here " +
                std::to_string(least_bytes_) + ": set it to the same on all ranks"};
  }
  for (Device* device : devices_) {
    std::vector<Device::Imported> all;
    Status status;
    for (const std::string& handle : offer->handles) {
      const Result<Device::Imported> one = device->Import(handle);
      status = one.status();
      if (!status.ok()) break;
      all.push_back(*one);
    }
    auto& known = imported_[{device, process}];
    if (status.ok()) std::swap(known, all);
    for (const Device::Imported& one : all) device->Release(one.memory);
    if (!status.ok()) return status;
  }
  return Status::Ok();
}

std::vector<uint8_t> DeviceIpc::Open(std::span<const std::string> offers,
                                 std::vector<std::string>* reasons) {
  std::vector<uint8_t> opened;
  for (const std::string& offer : offers) {
    const Status status =
        least_bytes_ <= 0 || devices_.empty()
            ? Status(Code::kUnavailable, "this process imports no memory")
            : OpenOne(offer, static_cast<int>(opened.size()));
    opened.push_back(status.ok());
    if (reasons != nullptr) reasons->push_back(status.message());
  }
  return opened;
}

void DeviceIpc::Agree(std::span<const std::vector<uint8_t>> opened) {
  exports_to_.assign(opened.size(), 0);
  for (size_t process = 0; process < opened.size(); ++process) {
    const auto& row = opened[process];
    exports_to_[process] = static_cast<size_t>(process_) < row.size() && row[process_] != 0;
  }
}

// ---- Exports -----------------------------------------------------------------------------

const DeviceIpc::Exported& DeviceIpc::Export(const SharedCode& code, int importer, const Header& header) {
  Exported exported{code.block, importer, header, {}};
  IpcDescriptor& descriptor = exported.descriptor;
  descriptor.number = next_++;
  descriptor.exporter = process_;
  descriptor.packed = code.packed;
  descriptor.referenced = code.referenced;
  descriptor.pieces = code.pieces;
  for (size_t i = 0; i < arenas_.all().size(); ++i) {
    const SharedArena& arena = *arenas_.all()[i];
    if (code.memory < arena.base || code.memory >= arena.base + arena.bytes) continue;
    descriptor.memory = static_cast<int32_t>(i);
    for (CodePiece& piece : descriptor.pieces) piece.offset += code.memory - arena.base;
  }
  descriptor.payload_bytes = PayloadBytes(descriptor.pieces, descriptor.packed, descriptor.referenced);
  exported.header.payload_bytes = descriptor.payload_bytes;
  const uint64_t number = descriptor.number;
  return exported_.emplace(number, std::move(exported)).first->second;
}

std::optional<DeviceIpc::Exported> DeviceIpc::Release(uint64_t number, int importer) {
  const auto found = exported_.find(number);
  if (found == exported_.end() || found->second.importer != importer) return std::nullopt;
  Exported exported = std::move(found->second);
  exported_.erase(found);
  return exported;
}

void DeviceIpc::Lose(int process) {
  if (process < 0) std::fill(exports_to_.begin(), exports_to_.end(), uint8_t{0});
  else if (static_cast<size_t>(process) < exports_to_.size()) exports_to_[process] = 0;
}

// ---- Imports -----------------------------------------------------------------------------

Result<uint64_t> DeviceIpc::Accept(const Header& header, std::span<const std::byte> payload) {
  Result<IpcDescriptor> descriptor = ReadDescriptor(payload);
  if (!descriptor.ok()) return descriptor.status();
  if (descriptor->exporter != header.source_process) {
    return Status(Code::kDataLoss, "a descriptor arrived that is not of its sender");
  }
  Received received{header, std::move(*descriptor)};
  received.header.type = MessageType::kData;
  received.header.payload_bytes = received.descriptor.payload_bytes;
  const uint64_t id = next_++;
  received_.emplace(id, std::move(received));
  return id;
}

const DeviceIpc::Received* DeviceIpc::Find(uint64_t id) const {
  const auto found = received_.find(id);
  return found == received_.end() ? nullptr : &found->second;
}

Result<const std::byte*> DeviceIpc::Reach(Device* device, const IpcDescriptor& descriptor) const {
  const auto found = imported_.find({device, descriptor.exporter});
  if (found == imported_.end()) {
    return Status(Code::kUnavailable, std::string(device->name()) +
                                          " does not reach the shared memory of process " +
                                          std::to_string(descriptor.exporter));
  }
  const auto& memories = found->second;
  const Status outside(Code::kDataLoss, "a descriptor arrived for memory that is not shared");
  if (descriptor.memory < 0 || descriptor.memory >= std::ssize(memories)) return outside;
  const Device::Imported& from = memories[descriptor.memory];
  for (const CodePiece& piece : descriptor.pieces) {
    if (piece.bytes > from.bytes || piece.offset > from.bytes - piece.bytes) return outside;
  }
  return from.memory;
}

std::optional<DeviceIpc::Received> DeviceIpc::Drop(uint64_t id) {
  const auto found = received_.find(id);
  if (found == received_.end()) return std::nullopt;
  Received received = std::move(found->second);
  received_.erase(found);
  return received;
}

void DeviceIpc::Forget(const std::set<Device*>& stopped) {
  exported_.clear();
  exports_to_.clear();
  for (const auto& [from, all] : imported_) {
    if (stopped.contains(from.first)) continue;
    for (const Device::Imported& one : all) from.first->Release(one.memory);
  }
  imported_.clear();
}

}  // namespace jaxccomp
