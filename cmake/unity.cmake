# Folders of small files, which are compiled a few at a time: what a small file costs is nearly all for the
# standard library, which each would instantiate anew. Two files of such a folder must not give one name to two
# things. Off (`make sanitize`, `make fuzz`) each is compiled alone, so they include what they need.
option(JAXCCOMP_UNITY_BUILD "Compile small files of a folder together" ON)
set(UNITY_FOLDERS csrc/codec csrc/codec/delta csrc/codec/lossless csrc/collective csrc/common csrc/cuda/stage csrc/engine
    csrc/execution csrc/matching csrc/planner csrc/transport/mpi xla_ffi/handlers xla_ffi/python)

function(compile_together target files_together)
  if(NOT JAXCCOMP_UNITY_BUILD)
    return()
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  foreach(folder IN LISTS UNITY_FOLDERS)
    set(files ${ARGN})
    list(FILTER files INCLUDE REGEX "^${folder}/[^/]*$")
    # Kernels have flags of their own.
    list(FILTER files EXCLUDE REGEX "/kernels_[^/]*$")
    set(count 0)
    foreach(file IN LISTS files)
      math(EXPR group "${count} / ${files_together}")
      math(EXPR count "${count} + 1")
      set_source_files_properties(${file} PROPERTIES UNITY_GROUP "${folder}/${group}")
    endforeach()
  endforeach()
endfunction()
