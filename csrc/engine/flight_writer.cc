#include "engine/flight_writer.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <system_error>
#include <utility>

namespace jaxccomp {
namespace {

// The signal handler uses only these.
std::atomic<int> signal_event{-1};
std::atomic<bool> signalled{false};
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);

// The handler before this one, such as MPICH's. Written once, before OnSignal can run.
struct sigaction previous;

void OnSignal(int number, siginfo_t* info, void* context) {
  const int kept = errno;
  signalled.store(true);
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(signal_event.load(), &one, sizeof(one));
  errno = kept;
  if ((previous.sa_flags & SA_SIGINFO) != 0) {
    previous.sa_sigaction(number, info, context);
  } else if (previous.sa_handler != SIG_DFL) {
    previous.sa_handler(number);
  }
}

// Makes `event` readable at each SIGUSR1. False: the signal is ignored, or another engine of this process gets it.
bool HandleSignal(int event) {
  static bool installed = false;
  if (installed) {
    int none = -1;
    return signal_event.compare_exchange_strong(none, event);
  }
  if (sigaction(SIGUSR1, nullptr, &previous) != 0) return false;
  if ((previous.sa_flags & SA_SIGINFO) == 0 && previous.sa_handler == SIG_IGN) return false;
  signal_event.store(event);
  struct sigaction own = {};
  own.sa_sigaction = OnSignal;
  own.sa_flags = SA_RESTART | SA_SIGINFO;
  sigemptyset(&own.sa_mask);
  return installed = sigaction(SIGUSR1, &own, nullptr) == 0;
}

// Writes the file so that readers find the old or the whole new content. Returns the error; empty: none.
std::string WriteFile(const std::string& path, const std::string& content) {
  const std::string part = path + ".part";
  std::FILE* const file = std::fopen(part.c_str(), "we");
  if (file == nullptr) return std::strerror(errno);
  const bool whole = std::fwrite(content.data(), 1, content.size(), file) == content.size();
  int error = whole ? 0 : errno;
  if (std::fclose(file) != 0 && error == 0) error = errno;
  if (error == 0 && std::rename(part.c_str(), path.c_str()) != 0) error = errno;
  if (error == 0) return "";
  std::remove(part.c_str());
  return std::strerror(error);
}

}  // namespace

FlightWriter::~FlightWriter() {
  Stop();
  // The handler may still write to its descriptor, on another thread: leak that on purpose.
  if (event_ >= 0 && !handles_signal_) close(event_);
}

Status FlightWriter::SetFolder(const std::string& folder) {
  if (folder.empty()) {
    path_.clear();
    return Status::Ok();
  }
  std::error_code error;
  const std::filesystem::path whole = std::filesystem::absolute(folder, error);
  if (!error) std::filesystem::create_directories(whole, error);
  if (!error && access(whole.c_str(), W_OK) != 0) error = {errno, std::generic_category()};
  if (error) {
    return {Code::kInvalidArgument, "option flight_folder: '" + folder + "' is no folder in which this process can write "
                                    "files (" + error.message() + "); name a folder that all ranks can create or write to"};
  }
  if (Status status = Start(); !status.ok()) return status;
  path_ = whole / ("flight-" + std::to_string(router_.process()) + ".json");
  std::filesystem::remove(path_, error);
  return Status::Ok();
}

Status FlightWriter::Start() {
  if (thread_.joinable() || lock_.stopped) return Status::Ok();
  if (event_ < 0) event_ = eventfd(0, EFD_CLOEXEC);
  if (event_ < 0) {
    return {Code::kUnavailable, std::string("option flight_folder: there is no eventfd (") + std::strerror(errno) +
                                    "); raise the limit of open files (ulimit -n), or leave the option out"};
  }
  try {
    thread_ = std::thread([this] { Loop(); });
  } catch (const std::system_error& error) {
    return {Code::kUnavailable, std::string("option flight_folder: a thread cannot be started (") + error.what() +
                                    "); raise the limit of threads (ulimit -u), or leave the option out"};
  }
  handles_signal_ = HandleSignal(event_);
  return Status::Ok();
}

void FlightWriter::Notify() const {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(event_, &one, sizeof(one));
}

void FlightWriter::OnFailure(std::string_view why) {
  if (path_.empty() || has_failed_ || lock_.stopped) return;
  has_failed_ = true;
  pending_ = recorder_.ToJson(why);
  Notify();
}

void FlightWriter::Loop() {
  pthread_setname_np(pthread_self(), "jaxccomp-flight");
  for (bool stops = false; !stops;) {
    uint64_t count = 0;
    if (read(event_, &count, sizeof(count)) < 0 && errno != EINTR) return;
    std::unique_lock<std::mutex> lock(lock_.mutex);
    std::string content = std::exchange(pending_, {});
    if (handles_signal_ && signalled.exchange(false)) content = recorder_.ToJson("SIGUSR1");
    const std::string path = path_;
    stops = stops_;
    lock.unlock();
    if (content.empty() || path.empty()) continue;
    if (const std::string error = WriteFile(path, content); !error.empty()) {
      std::fprintf(stderr, "jaxccomp: %s cannot be written: %s; the option flight_folder names the folder\n", path.c_str(),
                   error.c_str());
    }
  }
}

void FlightWriter::Stop() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard<std::mutex> lock(lock_.mutex);
    stops_ = true;
  }
  Notify();
  thread_.join();
  if (handles_signal_) signal_event.store(-1);
}

}  // namespace jaxccomp
