package sparkdl.comm.ps

import java.io.RandomAccessFile
import java.nio.{ByteBuffer, MappedByteBuffer}
import java.nio.channels.FileChannel
import java.nio.file.{Files, Path}

import sparkdl.comm.CommException

/**
 * Memory of one Python worker that this JVM maps too. It has no name in any file system: the worker made it with
 * memfd_create and keeps it open while this side maps it through /proc, so the kernel frees it when both are gone, however
 * they went.
 */
private[comm] final class MappedSegment private (windows: Array[MappedByteBuffer])
    extends BufferSegment(windows.map(window => window: ByteBuffer), DirectWindows.Bytes) {
  override protected def release(): Unit = windows.foreach(DirectWindows.free)
}

private[comm] object MappedSegment {

  /**
   * Maps the `bytes` bytes behind `path`.
   *
   * @throws CommException if the path is no worker's open memory file, or has another size than was agreed
   * @throws java.io.IOException if it cannot be opened
   */
  def map(path: String, bytes: Long): MappedSegment = map(path, bytes, "rw", FileChannel.MapMode.READ_WRITE)

  /** Likewise, only to be read: what writes to it throws a ReadOnlyBufferException. */
  def read(path: String, bytes: Long): MappedSegment = map(path, bytes, "r", FileChannel.MapMode.READ_ONLY)

  private def map(path: String, bytes: Long, open: String, mode: FileChannel.MapMode): MappedSegment = {
    if (!path.matches("/proc/[0-9]+/fd/[0-9]+"))
      throw new CommException(CommException.Protocol, s"segment path $path: expected a worker's /proc/PID/fd/N")
    if (!Files.isRegularFile(Path.of(path))) // to open a pipe may take for ever
      throw new CommException(CommException.Protocol, s"segment path $path: expected a memory file")
    val file = new RandomAccessFile(path, open)
    try {
      if (file.length != bytes)
        throw new CommException(CommException.Protocol, s"segment $path has ${file.length} bytes, agreed were $bytes")
      new MappedSegment(DirectWindows.of(bytes)(file.getChannel.map(mode, _, _)))
    } finally file.close()
  }
}
