# Finds OpenBLAS and gives the target OpenBLAS::openblas: the build with pthreads where a system
# has several (the engine then makes each worker's calls single-threaded). Sets OpenBLAS_FOUND
# and OpenBLAS_VERSION.

include(FindPackageHandleStandardArgs)
find_package(PkgConfig QUIET)
if(PkgConfig_FOUND)
    pkg_check_modules(PC_OpenBLAS QUIET openblas)
endif()
# Folders of their own come before the common ones, whose cblas.h may be another library's.
find_path(OpenBLAS_INCLUDE_DIR cblas.h
    HINTS ${OpenBLAS_ROOT}/include ${PC_OpenBLAS_INCLUDE_DIRS}
    PATH_SUFFIXES openblas-pthread openblas-openmp openblas)
find_library(OpenBLAS_LIBRARY openblas
    HINTS ${OpenBLAS_ROOT}/lib ${PC_OpenBLAS_LIBRARY_DIRS}
    PATH_SUFFIXES openblas-pthread openblas)
mark_as_advanced(OpenBLAS_INCLUDE_DIR OpenBLAS_LIBRARY)
set(OpenBLAS_VERSION "${PC_OpenBLAS_VERSION}")

find_package_handle_standard_args(OpenBLAS
    REQUIRED_VARS OpenBLAS_LIBRARY OpenBLAS_INCLUDE_DIR VERSION_VAR OpenBLAS_VERSION
    REASON_FAILURE_MESSAGE "cmake/setup.sh installs it (Debian: libopenblas-dev)")

if(OpenBLAS_FOUND AND NOT TARGET OpenBLAS::openblas)
    add_library(OpenBLAS::openblas UNKNOWN IMPORTED)
    set_target_properties(OpenBLAS::openblas PROPERTIES
        IMPORTED_LOCATION "${OpenBLAS_LIBRARY}"
        INTERFACE_INCLUDE_DIRECTORIES "${OpenBLAS_INCLUDE_DIR}")
endif()
