#include "device_execution/ipc_transfers.h"

#include <memory>
#include <optional>
#include <string>

#include "execution/compute.h"

namespace jaxccomp {

// What was imported to be passed on is on its way into a block of one's own.
struct IpcTransfers::Fetch final : Completion {
  IpcTransfers* transfers = nullptr;
  Operation* op = nullptr;
  TaskId task = 0;
  uint64_t imported = 0;
  void Done(Status status) override {
    const std::unique_ptr<Fetch> self(this);
    transfers->EndFetch(*this, std::move(status));
  }
};

// What was exported to one who refuses it is sent: first it is copied to pinned memory, then it travels.
struct IpcTransfers::Resend final : Completion {
  IpcTransfers* transfers = nullptr;
  DeviceUse* use = nullptr;
  DeviceIpc::Exported exported;
  BufferPool::Buffer buffer;
  bool copied = false;
  void Done(Status status) override { transfers->GoOn(this, std::move(status)); }
};

IpcTransfers::IpcTransfers(Executor* executor, Wire* wire, SharedCodes* codes,
                           std::function<DeviceUse*(const Device*)> use_of,
                           std::function<void(const Header&, const Status&)> failed)
    : executor_(*executor),
      wire_(*wire),
      codes_(*codes),
      ipc_(codes->ipc()),
      use_of_(std::move(use_of)),
      failed_(std::move(failed)) {
  wire_.SetDescriptorOwner(this);
}

// ---- Exports -----------------------------------------------------------------------------

bool IpcTransfers::SendDescriptor(Operation* op, TaskId task, Header header) {
  const PlannedTask& t = op->plan->tasks[task];
  if (codes_.IsSentByMpi(*op, t)) return false;
  const int process = op->endpoint->communicator->processes[t.peer];
  const DeviceIpc::Exported& exported =
      ipc_.Export(*SharedIn(op->code[t.src_code]), process, header);
  executor_.CountSent(op, exported.header.payload_bytes, process);
  executor_.StatsOf(header).ipc_bytes += exported.header.payload_bytes;
  header.type = MessageType::kDescriptor;
  // Held open: to send may end the operation.
  ++op->in_flight;
  wire_.Notify(process, header, WriteDescriptor(exported.descriptor));
  --op->in_flight;
  // The block is the engine's own: nobody has to wait for the importer.
  if (op->failed) executor_.CheckOver(op);
  else executor_.TaskDone(op, task);
  return true;
}

void IpcTransfers::OnRelease(const Header& header) {
  TakeBack(header.site, header.source_process, header.tag);
}

void IpcTransfers::TakeBack(uint64_t number, int importer, uint32_t why) {
  std::optional<DeviceIpc::Exported> exported = ipc_.Release(number, importer);
  if (!exported || why == kRead) return;
  executor_.StatsOf(exported->header).ipc_bytes -= exported->descriptor.payload_bytes;
  if (why == kRefused) ipc_.Refused(exported->header);
  if (why == kNotReached) ipc_.Lose(importer);
  auto again = std::make_unique<Resend>();
  again->transfers = this;
  const std::byte* const memory = exported->block->memory() - exported->block->offset;
  again->use = use_of_(ipc_.DeviceOf(exported->descriptor.memory));
  again->exported = std::move(*exported);
  const IpcDescriptor& descriptor = again->exported.descriptor;
  if (again->use != nullptr) again->buffer = again->use->codes.Take(descriptor.payload_bytes);
  if (again->buffer == nullptr) {
    return failed_(again->exported.header, {Code::kUnavailable,
                                            "out of pinned memory for a message that its receiver "
                                            "does not import"});
  }
  const auto runs = PayloadCopies(memory, descriptor.pieces, descriptor.packed,
                                  descriptor.referenced, again->buffer.get());
  Resend* const started = again.release();
  ++started->use->computing;
  started->use->device->Copy(Device::kNoCall, runs, started);
}

void IpcTransfers::GoOn(Resend* again, Status status) {
  std::unique_ptr<Resend> self(again);
  const auto end = [&] {
    self->use->codes.Give(std::move(self->buffer), self->exported.descriptor.payload_bytes);
  };
  if (self->copied) return end();
  --self->use->computing;
  self->copied = true;
  const Header header = self->exported.header;
  self->exported.block.reset();
  Transport* const transport = wire_.To(self->exported.importer);
  if (!status.ok() || transport == nullptr) {
    end();
    if (!status.ok()) failed_(header, status);
    return;
  }
  const Piece piece{self->buffer.get(), header.payload_bytes};
  const int importer = self->exported.importer;
  self.release();
  transport->Send(importer, header, {&piece, 1}, again);
}

// ---- Imports -----------------------------------------------------------------------------

Result<Announced> IpcTransfers::Accept(const Header& header, std::span<const std::byte> payload) {
  const Result<uint64_t> id = ipc_.Accept(header, payload);
  if (!id.ok()) return id.status();
  return Announced{header.source_process, *id, true};
}

const Header& IpcTransfers::HeaderOf(Announced descriptor) const {
  return ipc_.Find(descriptor.id)->header;
}

void IpcTransfers::Discard(Announced descriptor) { Release(descriptor.id, kRead); }

void IpcTransfers::ReleaseImported(uint64_t id) { Release(id, kRead); }

void IpcTransfers::Release(uint64_t id, uint32_t why) {
  const std::optional<DeviceIpc::Received> received = ipc_.Drop(id);
  if (!received) return;
  const int exporter = received->descriptor.exporter;
  if (exporter == wire_.process()) return TakeBack(received->descriptor.number, exporter, why);
  Header header = received->header;
  std::swap(header.source, header.destination);
  header.type = MessageType::kRelease;
  header.source_process = wire_.process();
  header.site = received->descriptor.number;
  header.tag = why;
  releases_.emplace_back(exporter, header);
}

bool IpcTransfers::Flush() {
  const bool any = HasUnsent();
  for (const auto& [exporter, header] : std::exchange(releases_, {})) {
    wire_.Notify(exporter, header);
  }
  return any;
}

bool IpcTransfers::Refuses(const Operation& op, Announced descriptor) {
  if (op.device == nullptr) {
    Release(descriptor.id, kRefused);
    return true;
  }
  const Result<const std::byte*> memory =
      ipc_.Reach(UseOf(op).device, ipc_.Find(descriptor.id)->descriptor);
  if (memory.ok() || memory.status().code() != Code::kUnavailable) return false;
  Release(descriptor.id, kNotReached);
  return true;
}

void IpcTransfers::StartImport(Operation* op, TaskId task, Announced announced) {
  const PlannedTask& t = op->plan->tasks[task];
  const IpcDescriptor descriptor = ipc_.Find(announced.id)->descriptor;
  const auto refuse = [&](Status status) {
    Release(announced.id, kRead);
    executor_.Fail(op, std::move(status));
  };
  Device* const device = UseOf(*op).device;
  const Result<const std::byte*> memory = ipc_.Reach(device, descriptor);
  if (!memory.ok()) return refuse(memory.status());
  const bool referenced = !t.packed && !op->call.refs.empty();
  if (t.dst_code < 0 || descriptor.packed != t.packed || descriptor.referenced != referenced) {
    return refuse({Code::kDataLoss, "an IPC descriptor arrived that is not of such a message"});
  }
  Operation::Block& block = op->code[t.dst_code];
  auto code = std::make_unique<SharedCode>();
  code->pieces = descriptor.pieces;
  code->packed = descriptor.packed;
  code->referenced = descriptor.referenced;
  block.used_bytes = descriptor.payload_bytes;
  executor_.TaskStarted(op, task);
  if (op->plan->code_peers[t.dst_code].empty()) {
    code->memory = const_cast<std::byte*>(*memory);
    code->imported = announced.id;
    block.capacity_bytes = 0;
    block.in_pieces = std::move(code);
    return executor_.TaskDone(op, task);
  }
  // Copied, so that it can be passed on: in shared memory where that is possible.
  std::vector<Device::CopyRun> runs;
  const auto layout = codes_.LayoutOf(*op, t.dst_code, descriptor.payload_bytes);
  if (codes_.ProvideForCopy(*op, layout, code.get())) {
    for (size_t i = 0; i < descriptor.pieces.size(); ++i) {
      const CodePiece& from = descriptor.pieces[i];
      if (from.bytes == 0) continue;
      runs.push_back({code->memory + code->pieces[i].offset, *memory + from.offset, from.bytes});
    }
    if (layout == SharedCodes::Layout::kContiguous) {
      PlacePayload(code.get());
      if (!code->packed) runs.push_back(WriteHead(code.get()));
    }
    codes_.Share(op, &block, std::move(code));
  } else {
    if (!executor_.memory().ProvideCode(op, &block, descriptor.payload_bytes)) {
      return refuse({Code::kUnavailable,
                     "out of pinned memory for a message that is passed on; a smaller chunk_bytes "
                     "option needs less"});
    }
    runs = PayloadCopies(*memory, descriptor.pieces, descriptor.packed, descriptor.referenced,
                         block.buffer.get());
  }
  executor_.memory().RecordPeak(op);
  auto* fetch = new Fetch;
  fetch->transfers = this;
  fetch->op = op;
  fetch->task = task;
  fetch->imported = announced.id;
  CountStarted(op);
  device->Copy(Device::kNoCall, runs, fetch);
}

void IpcTransfers::EndFetch(const Fetch& fetch, Status status) {
  Operation* const op = fetch.op;
  CountOver(op);
  Release(fetch.imported, kRead);
  if (op->failed) return executor_.CheckOver(op);
  if (!status.ok()) return executor_.Fail(op, std::move(status));
  op->last_progress = Operation::Clock::now();
  executor_.TaskDone(op, fetch.task);
}

}  // namespace jaxccomp
