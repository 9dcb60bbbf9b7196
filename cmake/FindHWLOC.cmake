# Finds hwloc 2 and gives the target HWLOC::hwloc. Sets HWLOC_FOUND and HWLOC_VERSION.

include(FindPackageHandleStandardArgs)
find_package(PkgConfig QUIET)
if(PkgConfig_FOUND)
    pkg_check_modules(PC_HWLOC QUIET hwloc)
endif()
find_path(HWLOC_INCLUDE_DIR hwloc.h HINTS ${PC_HWLOC_INCLUDE_DIRS})
find_library(HWLOC_LIBRARY hwloc HINTS ${PC_HWLOC_LIBRARY_DIRS})
mark_as_advanced(HWLOC_INCLUDE_DIR HWLOC_LIBRARY)
set(HWLOC_VERSION "${PC_HWLOC_VERSION}")

find_package_handle_standard_args(HWLOC
    REQUIRED_VARS HWLOC_LIBRARY HWLOC_INCLUDE_DIR VERSION_VAR HWLOC_VERSION
    REASON_FAILURE_MESSAGE "cmake/setup.sh installs it (Debian: libhwloc-dev)")

if(HWLOC_FOUND AND NOT TARGET HWLOC::hwloc)
    add_library(HWLOC::hwloc UNKNOWN IMPORTED)
    set_target_properties(HWLOC::hwloc PROPERTIES
        IMPORTED_LOCATION "${HWLOC_LIBRARY}"
        INTERFACE_INCLUDE_DIRECTORIES "${HWLOC_INCLUDE_DIR}")
endif()
