#include "transport/mpi/mpi_library.h"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

namespace jaxccomp {
namespace {

std::string_view BaseName(std::string_view path) {
  const size_t slash = path.rfind('/');
  return slash == std::string_view::npos ? path : path.substr(slash + 1);
}

// Paths of all loaded objects called libmpi*: the library, and its language bindings, which give the same functions.
std::vector<std::string> LoadedMpiObjects() {
  std::vector<std::string> paths;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* result) {
        const std::string_view path = info->dlpi_name ? info->dlpi_name : "";
        if (BaseName(path).starts_with("libmpi")) {
          static_cast<std::vector<std::string>*>(result)->emplace_back(path);
        }
        return 0;
      },
      &paths);
  return paths;
}

template <typename F>
bool Find(void* object, const char* name, F** function) {
  *function = reinterpret_cast<F*>(dlsym(object, name));
  return *function != nullptr;
}

bool ParseFamily(std::string_view path, std::string_view version, MpiFamily* family) {
  auto says = [&](std::string_view word) {
    return version.find(word) != std::string_view::npos;
  };
  if (BaseName(path).starts_with("libmpi_abi")) {
    *family = MpiFamily::kStandardAbi;
  } else if (says("Open MPI") || says("Spectrum MPI")) {
    *family = MpiFamily::kOpenMpi;
  } else if (says("MPICH") || says("Intel(R) MPI") || says("MVAPICH")) {
    *family = MpiFamily::kMpich;
  } else {
    return false;
  }
  return true;
}

}  // namespace

std::string_view Name(MpiFamily family) {
  switch (family) {
    case MpiFamily::kMpich: return "MPICH";
    case MpiFamily::kOpenMpi: return "Open MPI";
    case MpiFamily::kStandardAbi: return "MPI ABI";
  }
  return "?";
}

bool MpiLibrary::Resolve(void* object) {
  const bool found =
      Find(object, "MPI_Isend", &isend_) && Find(object, "MPI_Irecv", &irecv_) &&
      Find(object, "MPI_Test", &test_) && Find(object, "MPI_Ibarrier", &ibarrier_) &&
      Find(object, "MPI_Cancel", &cancel_) &&
      Find(object, "MPI_Testsome", &test_some_) &&
      Find(object, "MPI_Test_cancelled", &test_cancelled_) &&
      Find(object, "MPI_Request_free", &request_free_) &&
      Find(object, "MPI_Comm_rank", &comm_rank_) && Find(object, "MPI_Comm_size", &comm_size_) &&
      Find(object, "MPI_Initialized", &initialized_) &&
      Find(object, "MPI_Finalized", &finalized_) &&
      Find(object, "MPI_Query_thread", &query_thread_) &&
      Find(object, "MPI_Error_string", &error_string_) &&
      Find(object, "MPI_Get_library_version", &library_version_);
  if (!found) return false;
  object_ = object;
  // The path of the library itself: `object` may be a language binding that depends on it.
  Dl_info info;
  if (dladdr(reinterpret_cast<void*>(isend_), &info) != 0 && info.dli_fname != nullptr) {
    path_ = info.dli_fname;
  }
  return true;
}

Result<const MpiLibrary*> MpiLibrary::Load() {
  static std::mutex mutex;
  static std::unique_ptr<const MpiLibrary> library;
  std::lock_guard lock(mutex);
  if (library) return library.get();

  std::string uninitialised;
  for (const std::string& path : LoadedMpiObjects()) {
    // Never closed: the functions are kept, and the object is not ours to unload.
    void* object = dlopen(path.c_str(), RTLD_LAZY | RTLD_NOLOAD);
    if (object == nullptr) continue;
    std::unique_ptr<MpiLibrary> candidate(new MpiLibrary);
    if (!candidate->Resolve(object)) continue;
    // Two MPI libraries can be loaded; the initialised one is in use.
    int initialised = 0;
    if (candidate->initialized_(&initialised) != 0 || initialised == 0) {
      uninitialised = candidate->path_;
      continue;
    }
    if (candidate->Finalized()) {
      return Status{Code::kFailedPrecondition,
                    "MPI (" + candidate->path_ + ") has been finalized"};
    }
    std::vector<char> text(8192 + 1);  // the largest MPI_MAX_LIBRARY_VERSION_STRING known
    int length = 0;
    if (candidate->library_version_(text.data(), &length) != 0) length = 0;
    const std::string_view version(text.data());
    candidate->version_ = version.substr(0, version.find('\n'));
    if (!ParseFamily(candidate->path_, version, &candidate->family_)) {
      return Status{Code::kUnavailable, "the MPI library loaded from " + candidate->path_ +
                                            " (\"" + candidate->version_ +
                                            "\") is not supported: use MPICH, Intel MPI or "
                                            "Open MPI"};
    }
    candidate->status_ignore_ =
        candidate->family_ == MpiFamily::kMpich ? reinterpret_cast<void*>(1) : nullptr;
    library = std::move(candidate);
    return library.get();
  }
  if (!uninitialised.empty()) {
    return Status{Code::kUnavailable, "the MPI library loaded from " + uninitialised +
                                          " is not initialised: import mpi4py.MPI first, with "
                                          "mpi4py.rc.initialize left True"};
  }
  return Status{Code::kUnavailable,
                "no libmpi is loaded in this process: import mpi4py.MPI first, or install an MPI "
                "with `pip install jaxccomp[mpich]`"};
}

int MpiLibrary::TestSome(std::span<MpiHandle> requests, Tested* completed) const {
  const auto count = static_cast<int>(requests.size());
  const size_t handle_bytes = family_ == MpiFamily::kMpich ? sizeof(int32_t) : sizeof(MpiHandle);
  alignas(8) unsigned char handles[kMaxTested * sizeof(MpiHandle)];
  for (size_t i = 0; i < requests.size(); ++i) {
    std::memcpy(handles + i * handle_bytes, &requests[i], handle_bytes);
  }
  alignas(8) unsigned char statuses[kMaxTested * kMaxStatusBytes];
  int indices[kMaxTested];
  int done = 0;
  const int error = test_some_(count, handles, &done, indices, statuses);
  for (size_t i = 0; i < requests.size(); ++i) {
    std::memcpy(&requests[i], handles + i * handle_bytes, handle_bytes);
  }
  if (error != 0 && done <= 0) {  // the error does not say which request failed
    done = 0;
    for (int i = 0; i < count; ++i) {
      int over = 0;
      const int own = Test(&requests[i], &over);
      if (own != 0 || over != 0) completed[done++] = {i, own};
    }
    return done;
  }
  bool named = false;
  for (int i = 0; i < done; ++i) {
    completed[i] = {indices[i], 0};
    if (error == 0) continue;
    const bool mpich = family_ == MpiFamily::kMpich;
    // The size of MPI_Status, and below the offset of MPI_ERROR.
    const size_t status_bytes = mpich ? 20 : family_ == MpiFamily::kOpenMpi ? 24 : 32;
    std::memcpy(&completed[i].error, statuses + i * status_bytes + (mpich ? 16 : 8), sizeof(int));
    named |= completed[i].error != 0;
  }
  // If no status names an error, the error may be that of any completed request.
  for (int i = 0; i < done && error != 0 && !named; ++i) completed[i].error = error;
  return std::max(done, 0);   // MPI_UNDEFINED: no request is active
}

void* MpiLibrary::FindFunction(const char* name) const { return dlsym(object_, name); }

bool MpiLibrary::Finalized() const {
  int finalized = 0;
  return finalized_(&finalized) == 0 && finalized != 0;
}

bool MpiLibrary::ThreadMultiple() const {
  const int multiple = family_ == MpiFamily::kStandardAbi ? 4096 : 3;
  int provided = 0;
  return query_thread_(&provided) == 0 && provided >= multiple;
}

std::string MpiLibrary::ErrorText(int error) const {
  char text[1024] = {};  // MPI_MAX_ERROR_STRING is at most 512
  int length = 0;
  if (error_string_(error, text, &length) != 0 || text[0] == '\0') {
    return "MPI error " + std::to_string(error);
  }
  return text;
}

}  // namespace jaxccomp
