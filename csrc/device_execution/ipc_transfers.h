// Messages that stay in the memory of their sender's device (device/ipc/device_ipc.h): descriptors sent and
// received, and what is done where a receiver refuses one.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "common/status.h"
#include "device/ipc/device_ipc.h"
#include "device_execution/device_use.h"
#include "device_execution/shared_codes.h"
#include "execution/executor.h"
#include "execution/operation.h"
#include "transport/wire.h"

namespace jaxccomp {

// Not thread-safe: used under the engine's lock.
class IpcTransfers final : private DescriptorOwner {
 public:
  // `use_of`: what is known of a device; null for one without operations. `failed`: a message that was
  // exported cannot be sent after all.
  IpcTransfers(Executor* executor, Wire* wire, SharedCodes* codes,
               std::function<DeviceUse*(const Device*)> use_of,
               std::function<void(const Header&, const Status&)> failed);

  // As DevicePath's.
  bool SendDescriptor(Operation* op, TaskId task, Header header);
  bool Refuses(const Operation& op, Announced descriptor);
  void StartImport(Operation* op, TaskId task, Announced descriptor);
  bool Flush();
  bool HasUnsent() const { return !releases_.empty(); }

  // A descriptor has come, which is a payload that can be pulled here alone, with that header.
  Result<Announced> Accept(const Header& header, std::span<const std::byte> payload);
  const Header& HeaderOf(Announced descriptor) const;
  // An importer has released what it read, or refuses it.
  void OnRelease(const Header& header);
  // Of a code that was imported: it is not read any more.
  void ReleaseImported(uint64_t id);

 private:
  // What a release says (Header::tag).
  enum : uint32_t { kRead = 0, kRefused = 1, kNotReached = 2 };
  struct Fetch;
  struct Resend;

  void Discard(Announced descriptor) override;
  void Release(uint64_t id, uint32_t why);
  void TakeBack(uint64_t number, int importer, uint32_t why);
  void GoOn(Resend* again, Status status);
  void EndFetch(const Fetch& fetch, Status status);

  Executor& executor_;
  Wire& wire_;
  SharedCodes& codes_;
  DeviceIpc& ipc_;
  const std::function<DeviceUse*(const Device*)> use_of_;
  const std::function<void(const Header&, const Status&)> failed_;
  // To exporters in other processes: sent when no operation is being changed, as to send may end some.
  std::vector<std::pair<int, Header>> releases_;
};

}  // namespace jaxccomp
