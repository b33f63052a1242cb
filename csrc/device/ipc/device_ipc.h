// Device IPC: a message's bytes stay in shared memory of its sender's device, and its receiver imports that
// memory and reads them there, from the same GPU or another one of the host. What travels is a descriptor
// (descriptor.h), and a release when the receiver has read.
//
// Agreement. Processes offer their shared memories when they join (Offer), open those of the others of
// their host (Open), and tell each other which they could (Agree). From then on each knows to whom it
// exports, without asking. That happens before the first call, so that opening may take its time.
//
// Order. A descriptor is sent when what has made the bytes is seen to be over, and released when what reads
// them is: no stream waits for one of another process.
//
// Lifetime. The sender's operation ends when the descriptor is sent. The block is used again when all that
// import it have released it, never before. A process that is lost never releases: the block is given up,
// since it cannot be known whether it is still read. So exports take no more memory than was set aside for
// them. What finds no room there travels as it would without device IPC.
//
// Refusal. Who gets a descriptor that it has no use for, such as a rank whose tensors lie in the host's
// memory, refuses it. The sender then sends the bytes, and exports nothing to that receiver there again.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "device/device.h"
#include "device/ipc/descriptor.h"
#include "device/ipc/shared_code.h"
#include "device/shared_arena.h"
#include "transport/transport.h"

namespace jaxccomp {

// Not thread-safe: used under the engine's lock.
class DeviceIpc {
 public:
  DeviceIpc(int process, SharedArenas* arenas) : process_(process), arenas_(*arenas) {}
  DeviceIpc(const DeviceIpc&) = delete;
  DeviceIpc& operator=(const DeviceIpc&) = delete;

  // Messages of at least so many bytes are exported; 0: none.
  void SetLeastBytes(int64_t bytes) { least_bytes_ = bytes; }
  int64_t least_bytes() const { return least_bytes_; }

  // What the others need to know: takes `memory_bytes` of each device the first time. Empty when
  // nothing shall be exported.
  std::string Offer(std::span<Device* const> devices, int64_t memory_bytes);
  // By process: whether all of this one's devices reach all shared memory of that one, which has the
  // same least_bytes. Why not goes to `reasons`.
  std::vector<uint8_t> Open(std::span<const std::string> offers, std::vector<std::string>* reasons);
  // What each process has returned from Open.
  void Agree(std::span<const std::vector<uint8_t>> opened);
  bool ExportsTo(int process) const {
    return static_cast<size_t>(process) < exports_to_.size() && exports_to_[process] != 0;
  }

  // Whose shared memory descriptors name so; null for none.
  Device* DeviceOf(int32_t memory) const {
    const auto& all = arenas_.all();
    return static_cast<size_t>(memory) < all.size() ? all[memory]->device : nullptr;
  }

  // Exports.
  struct Exported {
    std::shared_ptr<SharedArena::Block> block;
    int importer = -1;   // its process
    Header header;       // of the message that the descriptor stands for
    IpcDescriptor descriptor;   // pieces count from where the arena begins
  };
  const Exported& Export(const SharedCode& code, int importer, const Header& header);
  // The importer has released it; nothing for one that is not that process's.
  std::optional<Exported> Release(uint64_t number, int importer);
  // What is exported to whoever is lost stays so.
  void Lose(int process);
  void Refused(const Header& header) {
    if (refused_.size() >= kMostRefused) refused_.clear();   // they are found anew
    refused_.insert(KeyOf(header));
  }
  bool IsRefused(const Header& header) const { return refused_.contains(KeyOf(header)); }
  int64_t exported_count() const { return static_cast<int64_t>(exported_.size()); }

  // Imports.
  struct Received {
    Header header;
    IpcDescriptor descriptor;
  };
  // A descriptor has come: its number here.
  Result<uint64_t> Accept(const Header& header, std::span<const std::byte> payload);
  const Received* Find(uint64_t id) const;
  // Where the pieces count from, for that device. kDataLoss when they lie nowhere, kUnavailable when
  // the device does not reach them.
  Result<const std::byte*> Reach(Device* device, const IpcDescriptor& descriptor) const;
  std::optional<Received> Drop(uint64_t id);

  // Gives back what was imported; of `stopped` devices, nothing.
  void Forget(const std::set<Device*>& stopped);

 private:
  static constexpr size_t kMostRefused = 4096;
  using RefusedKey = std::pair<uint64_t, std::pair<uint64_t, int32_t>>;
  static RefusedKey KeyOf(const Header& header) {
    return {header.communicator, {header.site, header.destination}};
  }
  Status OpenOne(const std::string& offer, int process);

  const int process_;
  SharedArenas& arenas_;   // descriptors say which
  int64_t least_bytes_ = 0;
  std::vector<Device*> devices_;                       // all that were offered for
  std::map<std::pair<Device*, int>, std::vector<Device::Imported>> imported_;   // by exporter
  std::vector<uint8_t> exports_to_;
  std::set<RefusedKey> refused_;
  std::map<uint64_t, Exported> exported_;
  std::map<uint64_t, Received> received_;
  uint64_t next_ = 1;
};

}  // namespace jaxccomp
