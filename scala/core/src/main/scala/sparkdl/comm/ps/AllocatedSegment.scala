package sparkdl.comm.ps

import java.nio.ByteBuffer

/** Memory of a rank that runs in this JVM. No other process sees it, so other ranks fetch what its rank publishes. */
private[comm] final class AllocatedSegment private (windows: Array[ByteBuffer])
    extends BufferSegment(windows, DirectWindows.Bytes) {
  override protected def release(): Unit = windows.foreach(DirectWindows.free)
}

private[comm] object AllocatedSegment {

  /** Allocate `bytes` bytes of zeros, which count against the JVM's -XX:MaxDirectMemorySize. */
  def apply(bytes: Long): AllocatedSegment =
    new AllocatedSegment(DirectWindows.create(bytes)((_, count) => ByteBuffer.allocateDirect(count.toInt)))
}
