#include "transport/ucx/ucx_channel.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <thread>
#include <utility>

#include "transport/pieces.h"

namespace jaxccomp {
namespace {

constexpr int64_t kBufferBytes = static_cast<int64_t>(sizeof(Header)) + UcxChannel::kEagerBytes;
// Per call, so that a flood of messages does not keep the engine's lock.
constexpr int kMaxProgress = 32;
// Limits of the messages that are held for one process. A correct process never gives UCX so much at a time.
constexpr size_t kMaxHeld = 1 << 16;
constexpr int64_t kMaxHeldBytes = 64 << 20;

// Time limit for UCX to close connections.
constexpr auto kDisconnecting = std::chrono::milliseconds(200);
// Time limit for flushing the messages that UCX has copied. UCX has already sent all bytes that the system accepts.
constexpr auto kFlushing = std::chrono::milliseconds(200);

}  // namespace

UcxChannel::UcxChannel(std::unique_ptr<UcxWorker> worker, int process,
                       const std::vector<std::string>& addresses, const Secret& secret,
                       std::chrono::milliseconds timeout, Listener* listener)
    : ControlChannel(0),
      worker_(std::move(worker)),
      ucx_(worker_->ucx()),
      process_(process),
      secret_(secret),
      listener_(*listener),
      keepalive_(this, process, timeout) {
  for (const std::string& address : addresses) AddProcess(address);
}

void UcxChannel::AddProcess(const std::string& address) {
  Peer& peer = peers_.emplace_back();
  peer.channel = this;
  peer.process = processes();
  peer.address = address;
  peer.failed = address.empty();
  AddSmallCredit();
  keepalive_.Grow();
}

Status UcxChannel::Open() {
  ucx::HandlerParam param;
  param.field_mask = ucx::HandlerParam::kId | ucx::HandlerParam::kFlags |
                     ucx::HandlerParam::kCallback | ucx::HandlerParam::kUser;
  param.id = kMessageId;
  param.flags = ucx::HandlerParam::kWholeMessages;
  param.callback = &OnMessage;
  param.user = this;
  const ucx::Status status = ucx_.worker_set_am_recv_handler(worker_->handle(), &param);
  if (status == ucx::kOk) return Status::Ok();
  return {Code::kUnavailable,
          "UCX cannot set the handler of active messages: " + ucx_.Describe(status)};
}

// --- Connections --------------------------------------------------------------------------------

Status UcxChannel::Connect(Peer* peer) {
  if (left_ || peer->failed) return FailedPeerError(peer->process);
  if (peer->endpoint != nullptr) return Status::Ok();
  ucx::EndpointParams params;
  params.field_mask = ucx::EndpointParams::kAddress | ucx::EndpointParams::kErrorMode |
                      ucx::EndpointParams::kErrorHandler;
  params.address = peer->address.data();
  params.error_mode = ucx::EndpointParams::kPeer;
  params.error_handler = &OnBroken;
  params.error_user = peer;
  const ucx::Status status = ucx_.ep_create(worker_->handle(), &params, &peer->endpoint);
  if (status == ucx::kOk) return Status::Ok();
  peer->endpoint = nullptr;
  return BrokenError(peer->process, status);
}

void UcxChannel::OnBroken(void* user, ucx::Endpoint*, ucx::Status status) {
  Peer& peer = *static_cast<Peer*>(user);
  peer.failure = status;
  peer.channel->failed_endpoints_.push_back(peer.process);
}

void UcxChannel::MarkFailed(int process, const Status& why) {
  Peer& peer = PeerOf(process);
  if (peer.failed || process == process_) return;
  peer.failed = true;
  if (peer.endpoint != nullptr) failed_endpoints_.push_back(process);
  listener_.OnLost(process, why);
  FailUnsent(&peer, why);
}

void UcxChannel::ConnectLater(Peer* peer) {
  if (!std::exchange(peer->due, true)) due_.push_back(peer->process);
}

void UcxChannel::SendUnsent(Peer* peer) {
  while (!peer->unsent.empty() && !peer->failed) {
    Unsent next = std::move(peer->unsent.front());
    peer->unsent.pop_front();
    --open_sends_;
    void* const owner = next.message->owner;
    const int64_t bytes = next.message->bytes;
    Status status;
    const Sent sent = StartNow(next.message.release(), next.data, next.bytes, &status);
    if (sent == Sent::kLater) continue;
    if (sent == Sent::kFailed) MarkFailed(peer->process, status);
    if (owner != nullptr) listener_.OnFragmentSent(peer->process, owner, bytes, status);
  }
}

void UcxChannel::FailUnsent(Peer* peer, const Status& why) {
  for (Unsent& each : std::exchange(peer->unsent, {})) {
    --open_sends_;
    void* const owner = each.message->owner;
    const int64_t bytes = each.message->bytes;
    GiveMessage(each.message.release());
    if (owner != nullptr) listener_.OnFragmentSent(peer->process, owner, bytes, why);
  }
}

void UcxChannel::OnDisconnect(int process) { MarkFailed(process, BrokenError(process, ucx::kConnectionReset)); }

void UcxChannel::DoLater() {
  for (int process : std::exchange(due_, {})) {
    Peer& peer = PeerOf(process);
    peer.due = false;
    if (peer.failed) continue;
    Status status = Connect(&peer);
    if (!status.ok()) MarkFailed(process, status);
    SendUnsent(&peer);
  }
  for (int process : std::exchange(failed_endpoints_, {})) {
    Peer& peer = PeerOf(process);
    Disconnect(&peer);
    if (peer.failure != ucx::kOk) MarkFailed(process, BrokenError(process, peer.failure));
  }
  std::erase_if(closing_, [&](void* request) {
    if (ucx_.request_check_status(request) == ucx::kInProgress) return false;
    ucx_.request_free(request);
    return true;
  });
}

void UcxChannel::Disconnect(Peer* peer) {
  ucx::Endpoint* const endpoint = std::exchange(peer->endpoint, nullptr);
  if (endpoint == nullptr) return;
  ucx::RequestParam param;
  param.field_mask = ucx::RequestParam::kFlags;
  param.flags = ucx::RequestParam::kCloseForcefully;
  void* const request = ucx_.ep_close_nbx(endpoint, &param);
  if (request != nullptr && !ucx::IsError(request)) closing_.push_back(request);
}

Status UcxChannel::BrokenError(int process, ucx::Status status) const {
  return {Code::kUnavailable, "rank " + std::to_string(process) +
                                  " of the world can no longer be reached through UCX (" +
                                  ucx_.Describe(status) +
                                  "): it has died or ended, or the network between it and "
                                  "rank " + std::to_string(process_) + " has failed"};
}

std::string UcxChannel::Describe(int process) const {
  const Peer& peer = peers_[static_cast<size_t>(process)];
  std::string text = std::to_string(peer.sent) + " messages sent to it, " + std::to_string(peer.received) +
                     " received, " + std::to_string(peer.unsent.size()) + " wait for the connection";
  if (peer.endpoint == nullptr) return text;
  char* said = nullptr;
  size_t bytes = 0;
  std::FILE* const stream = open_memstream(&said, &bytes);
  if (stream == nullptr) return text;
  ucx_.ep_print_info(peer.endpoint, stream);
  std::fclose(stream);
  text += "; UCX says of its endpoint:\n" + std::string(said, bytes);
  std::free(said);
  return text;
}

// --- Sending ------------------------------------------------------------------------------------

UcxChannel::Message* UcxChannel::TakeMessage(int process, Kind kind) {
  std::unique_ptr<Message> message;
  if (spare_.empty()) {
    message = std::make_unique<Message>();
    message->channel = this;
    message->envelope.source = process_;
    message->envelope.secret = secret_;
  } else {
    message = std::move(spare_.back());
    spare_.pop_back();
  }
  message->process = process;
  message->envelope.kind = kind;
  message->envelope.number = 0;
  message->envelope.offset = 0;
  message->owner = nullptr;
  message->bytes = 0;
  return message.release();
}

void UcxChannel::GiveMessage(Message* message) {
  std::unique_ptr<Message> own(message);
  if (spare_.size() < kMaxSpare) spare_.push_back(std::move(own));
}

UcxChannel::Sent UcxChannel::Start(Message* message, const void* data, int64_t bytes,
                                   Status* status) {
  Peer& peer = PeerOf(message->process);
  // An endpoint must not be created in UCX's callbacks, so the message waits. Later messages wait behind it.
  const bool waits = !peer.unsent.empty() || (in_progress_ && peer.endpoint == nullptr);
  if (!waits || left_ || peer.failed) return StartNow(message, data, bytes, status);
  peer.unsent.push_back({std::unique_ptr<Message>(message), data, bytes});
  ++open_sends_;
  ConnectLater(&peer);
  return Sent::kLater;
}

UcxChannel::Sent UcxChannel::StartNow(Message* message, const void* data, int64_t bytes, Status* status) {
  Peer& peer = PeerOf(message->process);
  *status = Connect(&peer);
  if (!status->ok()) {
    GiveMessage(message);
    return Sent::kFailed;
  }
  ucx::RequestParam param;
  param.field_mask =
      ucx::RequestParam::kCallback | ucx::RequestParam::kUserData | ucx::RequestParam::kFlags;
  param.flags = ucx::RequestParam::kSendEagerly;
  param.sent = &OnSent;
  param.user_data = message;
  message->envelope.sequence = peer.sent++;
  void* const request =
      ucx_.am_send_nbx(peer.endpoint, kMessageId, &message->envelope, sizeof(Envelope), data,
                       static_cast<size_t>(bytes), &param);
  if (request == nullptr) {
    GiveMessage(message);
    return Sent::kOver;
  }
  if (ucx::IsError(request)) {
    *status = BrokenError(peer.process, ucx::ErrorOf(request));
    GiveMessage(message);
    return Sent::kFailed;
  }
  ++open_sends_;
  return Sent::kLater;
}

void UcxChannel::OnSent(void* request, ucx::Status status, void* user) {
  auto* const message = static_cast<Message*>(user);
  UcxChannel& channel = *message->channel;
  channel.ucx_.request_free(request);
  --channel.open_sends_;
  const int process = message->process;
  void* const owner = message->owner;
  const int64_t bytes = message->bytes;
  channel.GiveMessage(message);
  Status told;
  if (status != ucx::kOk) {
    Peer& peer = channel.PeerOf(process);
    if (!peer.failed && peer.failure == ucx::kOk) {
      peer.failure = status;
      channel.failed_endpoints_.push_back(process);
    }
    told = channel.BrokenError(process, status);
  }
  if (owner != nullptr) channel.listener_.OnFragmentSent(process, owner, bytes, told);
}

Status UcxChannel::Send(int process, const Header& header, std::span<const Piece> payload) {
  Message* const message = TakeMessage(process, Kind::kControl);
  if (message->buffer == nullptr) {
    message->buffer = std::make_unique_for_overwrite<std::byte[]>(kBufferBytes);
  }
  Header* const own = new (message->buffer.get()) Header(header);
  own->source_process = process_;
  ReturnSmallCredit(process, own);
  Gather(payload, message->buffer.get() + sizeof(Header));
  Status status;
  const int64_t bytes = static_cast<int64_t>(sizeof(Header)) + TotalBytes(payload);
  static_cast<void>(Start(message, message->buffer.get(), bytes, &status));
  return status;
}

UcxChannel::Sent UcxChannel::SendFragment(int process, const UcxFragment& fragment,
                                          std::span<const std::byte> data, void* owner) {
  Message* const message =
      TakeMessage(process, fragment.on_credit ? Kind::kFragmentOnCredit : Kind::kFragment);
  message->envelope.number = fragment.number;
  message->envelope.offset = fragment.offset;
  message->owner = owner;
  message->bytes = std::ssize(data);
  Status status;
  const Sent sent = Start(message, data.data(), std::ssize(data), &status);
  if (sent == Sent::kFailed) MarkFailed(process, status);
  return sent;
}

UcxChannel::Sent UcxChannel::SendCopied(int process, const UcxFragment& fragment,
                                        std::span<const Piece> pieces, void* owner) {
  Message* const message =
      TakeMessage(process, fragment.on_credit ? Kind::kFragmentOnCredit : Kind::kFragment);
  if (message->buffer == nullptr) {
    message->buffer = std::make_unique_for_overwrite<std::byte[]>(kBufferBytes);
  }
  Gather(pieces, message->buffer.get());
  message->envelope.number = fragment.number;
  message->envelope.offset = fragment.offset;
  message->owner = owner;
  message->bytes = TotalBytes(pieces);
  Status status;
  const Sent sent = Start(message, message->buffer.get(), message->bytes, &status);
  if (sent == Sent::kFailed) MarkFailed(process, status);
  return sent;
}

// --- Receiving ----------------------------------------------------------------------------------

bool UcxChannel::Poll() {
  if (left_) return false;
  bool any = false;
  in_progress_ = true;
  for (int i = 0; i < kMaxProgress && !left_ && worker_->Progress(); ++i) any = true;
  in_progress_ = false;
  if (!left_) keepalive_.Poll();
  if (!left_) DoLater();
  return any;
}

ucx::Status UcxChannel::OnMessage(void* user, const void* envelope_data, size_t envelope_bytes,
                                  void* data, size_t bytes, const ucx::ReceiveParam* param) {
  UcxChannel& channel = *static_cast<UcxChannel*>(user);
  if (channel.left_) return ucx::kOk;
  Envelope envelope;
  const bool rendezvous = (param->attributes & ucx::ReceiveParam::kRendezvous) != 0;
  if (rendezvous || envelope_bytes != sizeof(envelope)) {
    ++channel.refused_count_;
    return ucx::kOk;   // UCX drops the message
  }
  std::memcpy(&envelope, envelope_data, sizeof(envelope));
  if (!channel.IsAuthentic(envelope)) {
    ++channel.refused_count_;
    return ucx::kOk;
  }
  channel.Receive(envelope, {static_cast<const std::byte*>(data), bytes});
  return ucx::kOk;
}

// Compares in constant time, so that the duration does not reveal where the secrets differ.
bool UcxChannel::IsAuthentic(const Envelope& envelope) const {
  unsigned differing = envelope.magic ^ Envelope::kMagic;
  for (size_t i = 0; i < kSecretBytes; ++i) {
    differing |= std::to_integer<unsigned>(envelope.secret[i] ^ secret_[i]);
  }
  return differing == 0 && envelope.source >= 0 && envelope.source < processes() &&
         envelope.source != process_;
}

void UcxChannel::Receive(const Envelope& envelope, std::span<const std::byte> data) {
  Peer& peer = PeerOf(envelope.source);
  if (peer.failed) return;
  keepalive_.OnHeard(peer.process);
  if (!std::exchange(peer.heard, true)) {
    // The peer sends fragments only after it has heard from this process (HasHeard).
    if (peer.sent == 0 && peer.unsent.empty()) keepalive_.Greet(peer.process);
    listener_.OnHeard(peer.process);
  }
  if (envelope.sequence != peer.received) {
    peer.held_bytes += std::ssize(data);
    max_held_bytes_ = std::max(max_held_bytes_, peer.held_bytes);
    if (envelope.sequence < peer.received || peer.held.size() >= kMaxHeld ||
        peer.held_bytes > kMaxHeldBytes) {
      return MarkFailed(peer.process, {Code::kDataLoss, "process " + std::to_string(process_) +
                                                      " received message " +
                                                      std::to_string(envelope.sequence) +
                                                      " from process " +
                                                      std::to_string(peer.process) + " instead of " +
                                                      std::to_string(peer.received)});
    }
    peer.held.try_emplace(envelope.sequence, Held{envelope, {data.begin(), data.end()}});
    return;
  }
  ++peer.received;
  Deliver(peer, envelope, data);
  while (!peer.failed && !peer.held.empty() && peer.held.begin()->first == peer.received) {
    const auto next = peer.held.extract(peer.held.begin());
    peer.held_bytes -= std::ssize(next.mapped().data);
    ++peer.received;
    Deliver(peer, next.mapped().envelope, next.mapped().data);
  }
}

void UcxChannel::Deliver(const Peer& peer, const Envelope& envelope,
                         std::span<const std::byte> data) {
  if (envelope.kind != Kind::kControl) {
    const UcxFragment fragment{.number = envelope.number,
                               .on_credit = envelope.kind == Kind::kFragmentOnCredit,
                               .offset = envelope.offset};
    return listener_.OnFragment(peer.process, fragment, data);
  }
  Header header;
  header.magic = 0;   // invalid, if the message is too short
  if (data.size() >= sizeof(header)) {
    std::memcpy(&header, data.data(), sizeof(header));
    data = data.subspan(sizeof(header));
  }
  listener_.OnControlMessage(peer.process, header, data);
}

// --- The end ------------------------------------------------------------------------------------

void UcxChannel::Close(Clock::time_point deadline) {
  const auto progress = [&](Clock::time_point until, const auto& open) {
    while (!left_ && open() && Clock::now() < until) {
      if (!Poll()) std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  };
  // Notify the peers: to them, a connection through shared memory breaks only when this process ends.
  for (Peer& peer : peers_) {
    if (peer.endpoint != nullptr && !peer.failed) SendControl(peer.process, MessageType::kDisconnect, 0, 0);
  }
  progress(deadline, [&] { return open_sends_ > 0; });
  // Messages that UCX has copied count as sent, but would be lost when the connection is closed.
  const ucx::RequestParam none;
  void* const flush = left_ ? nullptr : ucx_.worker_flush_nbx(worker_->handle(), &none);
  if (flush != nullptr && !ucx::IsError(flush)) {
    progress(std::min(deadline, Clock::now() + kFlushing),
             [&] { return ucx_.request_check_status(flush) == ucx::kInProgress; });
    ucx_.request_free(flush);
  }
  // Close forcefully, without the peers, which may have left. Sends that a peer has not accepted by now fail.
  for (Peer& peer : peers_) Disconnect(&peer);
  progress(Clock::now() + kDisconnecting, [&] { return open_sends_ > 0 || !closing_.empty(); });
  if (open_sends_ > 0) return Leave();
  left_ = true;
  worker_.reset();   // closes the sockets, which the peers notice
}

void UcxChannel::Leave() {
  if (left_) return;
  left_ = true;
  if (worker_ != nullptr) worker_->Leave();
}

}  // namespace jaxccomp
