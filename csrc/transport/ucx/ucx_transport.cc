#include "transport/ucx/ucx_transport.h"

#include <thread>
#include <utility>

#include "common/interrupts.h"
#include "transport/pieces.h"

namespace jaxccomp {
namespace {

// Time limit of the shutdown barrier after a process is lost. The process may have died before the barrier (then the
// barrier cannot end), or may have left after it.
constexpr auto kPartingAfterLoss = std::chrono::seconds(10);
// One round for each bit of a number of processes.
constexpr uint32_t kMaxRounds = 31;

const Status& ClosedError() {
  static const Status error(Code::kUnavailable, "the UCX transport is closed");
  return error;
}

}  // namespace

Result<std::unique_ptr<UcxTransport>> UcxTransport::Create(std::unique_ptr<UcxWorker> worker,
                                                           UcxConfig config, Receiver* receiver) {
  const int processes = static_cast<int>(config.addresses.size());
  if (config.process < 0 || config.process >= processes) {
    return Status{Code::kInvalidArgument, "process " + std::to_string(config.process) +
                                              " is not in 0.." + std::to_string(processes - 1) +
                                              ": there are " + std::to_string(processes) + " addresses"};
  }
  if (config.addresses[static_cast<size_t>(config.process)].empty()) {
    return Status{Code::kInvalidArgument, "this process's own address is empty"};
  }
  const int sharers = config.grows ? Credit::kProcesses : processes;
  if (config.credit_bytes < 0) config.credit_bytes = CreditBytes(sharers);
  config.small_credit = Credit::Share(config.small_credit, sharers);
  // Header::returned_bytes must be able to hold all credit.
  config.small_credit.bytes = std::min<int64_t>(config.small_credit.bytes, 1 << 30);
  std::unique_ptr<UcxTransport> transport(new UcxTransport(std::move(worker), config, receiver));
  if (Status opened = transport->channel_.Open(); !opened.ok()) return opened;
  return transport;
}

UcxTransport::UcxTransport(std::unique_ptr<UcxWorker> worker, const UcxConfig& config,
                           Receiver* receiver)
    : receiver_(receiver),
      channel_(std::move(worker), config.process, config.addresses, config.secret,
               config.peer_timeout, this),
      outgoing_(&channel_, config.credit_bytes, config.readers),
      incoming_(&channel_, config.credit_bytes, config.memories),
      small_(&channel_) {
  channel_.GrantSmall(config.small_credit);
}

Status UcxTransport::AddProcesses(const std::vector<std::string>& addresses) {
  if (closed_) return ClosedError();
  for (const std::string& address : addresses) channel_.AddProcess(address);
  outgoing_.Grow();
  incoming_.Grow();
  small_.Grow();
  return Status::Ok();
}

void UcxTransport::OnLost(int process, const Status& why) {
  outgoing_.MarkFailed(process, why);
  incoming_.MarkFailed(process, why);
  small_.MarkFailed(process, why);
  lost_while_parting_ |= parting_;
  if (!parting_) receiver_->OnPeerFailed(process, why);
}

// --- Sending and pulling -----------------------------------------------------------------------

void UcxTransport::Send(int process, const Header& header, std::span<const Piece> payload,
                        Completion* done) {
  if (closed_) return done->Done(ClosedError());
  if (process == channel_.process()) {
    return done->Done({Code::kInternal, "process " + std::to_string(process) +
                                            " cannot send to itself through UCX"});
  }
  SendBySize(process, header, payload, done, kEagerBytes, &channel_, &small_, &outgoing_);
}

void UcxTransport::Pull(Announced announced, std::span<const Piece> into, Completion* done) {
  if (closed_) {
    if (done != nullptr) done->Done(ClosedError());
  } else if (IsSmall(announced)) {
    small_.Pull(announced, into, done);
  } else {
    incoming_.Pull(announced, into, done);
  }
}

// --- Receiving and progress -------------------------------------------------------------------

bool UcxTransport::Poll() {
  if (closed_) return false;
  const bool any = Progress();
  ReturnCredit();
  return any;
}

bool UcxTransport::Progress() {
  const bool any = channel_.Poll();
  outgoing_.AdvanceDue();
  return any;
}

void UcxTransport::OnControlMessage(int source, const Header& header,
                                    std::span<const std::byte> payload) {
  if (!delivers_) return;
  const bool good = header.magic == Header::kMagic && header.source_process == source &&
                    header.payload_bytes >= 0 &&
                    (header.returned_messages == 0 || small_.Replenish(header)) &&
                    Dispatch(header, payload);
  if (good) return;
  OnInvalid(source, "an invalid header (magic " + std::to_string(header.magic) + ", type " +
                         std::to_string(static_cast<int>(header.type)) + ", " +
                         std::to_string(header.payload_bytes) + " payload bytes of which " +
                         std::to_string(payload.size()) + " have come)");
}

bool UcxTransport::Dispatch(const Header& header, std::span<const std::byte> payload) {
  const int process = header.source_process;
  const bool comes_along = header.payload_bytes == std::ssize(payload);
  switch (header.type) {
    case MessageType::kClearToSend:
      return header.total_bytes <= kEagerBytes ? small_.OnClearToSend(process, header.payload_tag)
                                               : outgoing_.OnClearToSend(process, header.payload_tag);
    case MessageType::kFin:
      return outgoing_.OnFin(process, header.payload_tag);
    case MessageType::kCancelled:
      return incoming_.OnCancelled(process, header.payload_tag);
    case MessageType::kDeferredEager:
      return comes_along && small_.OnDeferredEager(header, payload);
    case MessageType::kCredit:
      // OnControlMessage has already regained the credit of small messages.
      return header.total_bytes == 0 || outgoing_.OnCredit(process, header.total_bytes);
    case MessageType::kFinalizeBarrier:
      if (header.payload_tag >= kMaxRounds) return false;
      rounds_heard_ |= uint32_t{1} << header.payload_tag;
      return true;
    case MessageType::kDisconnect:
      channel_.OnDisconnect(process);
      return true;
    case MessageType::kAlive:
      channel_.keepalive().OnAlive(process, Keepalive::IsQuestion(header));
      return true;
    case MessageType::kEagerUpgrade:
      return false;
    default:
      return Deliver(header, payload);
  }
}

bool UcxTransport::Deliver(Header header, std::span<const std::byte> payload) {
  const bool small = header.payload_bytes <= kEagerBytes;
  const bool on_request = header.type == MessageType::kReadyToSend;
  const bool announces = on_request || !small;
  // The announcement of a large payload may carry its addresses (LocatedPayload).
  if (announces ? small && !payload.empty() : std::ssize(payload) != header.payload_bytes) return false;
  Announced announced;
  if (announces) {
    announced = AnnouncedAs(small ? Kind::kSmall : Kind::kLarge, header);
    if (small ? !small_.OnAnnounced(header) : !incoming_.OnAnnounced(header, on_request, payload)) {
      return false;
    }
    if (on_request) header.type = MessageType::kData;
    payload = {};
  }
  receiver_->OnMessage(header, payload, announced);
  if (!announces && header.type == MessageType::kData) {
    small_.Take(header.source_process, header.payload_bytes);
  }
  return true;
}

void UcxTransport::OnFragment(int source, const UcxFragment& fragment,
                              std::span<const std::byte> data) {
  if (!delivers_ || incoming_.OnFragment(source, fragment, data)) return;
  OnInvalid(source, "bytes " + std::to_string(fragment.offset) + " to " +
                         std::to_string(fragment.offset + std::ssize(data)) +
                         " of a payload, which are not expected");
}

void UcxTransport::OnInvalid(int source, const std::string& what) {
  channel_.MarkFailed(source, {Code::kDataLoss, "process " + std::to_string(process()) +
                                              " received from process " + std::to_string(source) +
                                              " " + what});
}

// --- The end ------------------------------------------------------------------------------------

CancelResult UcxTransport::Cancel(int process, Completion* done, const Status& why, bool force) {
  if (closed_ || small_.Cancel(process, done, why)) return CancelResult::kDone;
  if (const std::optional<CancelResult> sent = outgoing_.Cancel(process, done, why, force)) return *sent;
  static_cast<void>(incoming_.Cancel(process, done, why));
  return CancelResult::kDone;
}

void UcxTransport::Quiesce(const Status& why) {
  if (closed_) return;
  closed_ = true;
  delivers_ = false;
  channel_.Leave();
  outgoing_.Close(why);
  incoming_.Close(why);
  small_.Close(why);
  for (int process = 0; process < process_count(); ++process) channel_.MarkFailed(process, why);
}

std::vector<int> UcxTransport::Living() const {
  std::vector<int> living;
  for (int each = 0; each < process_count(); ++each) {
    if (each == process() || !channel_.HasFailed(each)) living.push_back(each);
  }
  return living;
}

void UcxTransport::ShutdownBarrier(std::chrono::milliseconds patience) {
  if (closed_) return;
  parting_ = true;
  auto deadline = std::chrono::steady_clock::now() + patience;
  auto pause = std::chrono::microseconds(0);
  // Python cannot handle Ctrl-C during the wait, so an interrupt ends it.
  const uint64_t interrupts = InterruptCount();
  const std::vector<int> living = Living();
  const auto own = static_cast<size_t>(std::find(living.begin(), living.end(), process()) - living.begin());
  for (uint32_t round = 0; size_t{1} << round < living.size(); ++round) {
    const int to = living[(own + (size_t{1} << round)) % living.size()];
    channel_.SendControl(to, MessageType::kFinalizeBarrier, round, 0);
    while ((rounds_heard_ >> round & 1) == 0) {
      const auto now = std::chrono::steady_clock::now();
      if (std::exchange(lost_while_parting_, false)) {
        deadline = std::min(deadline, now + kPartingAfterLoss);
      }
      if (now >= deadline || InterruptCount() != interrupts) return;
      if (Poll()) {
        pause = std::chrono::microseconds(0);
      } else {
        std::this_thread::sleep_for(pause);
        pause = std::min(pause + std::chrono::microseconds(5), std::chrono::microseconds(1000));
      }
    }
  }
}

void UcxTransport::Close(std::chrono::milliseconds patience) {
  if (closed_) return;
  parting_ = true;
  delivers_ = false;
  const auto deadline = std::chrono::steady_clock::now() + patience;
  while (outgoing_.Sends() && std::chrono::steady_clock::now() < deadline) {
    if (!Progress()) std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  closed_ = true;
  channel_.Close(deadline);
  const Status why{Code::kUnavailable, "the UCX transport was closed"};
  outgoing_.Close(why);
  incoming_.Close(why);
  small_.Close(why);
}

}  // namespace jaxccomp
