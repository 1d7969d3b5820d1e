package sparkdl.comm.ps

import java.nio.ByteBuffer

/** Memory of a rank that runs in this JVM. No other process sees it: what its rank publishes is fetched. */
private[comm] final class AllocatedSegment private (windows: Array[ByteBuffer])
    extends BufferSegment(windows, DirectWindows.Bytes) {
  override protected def release(): Unit = windows.foreach(DirectWindows.free)
}

private[comm] object AllocatedSegment {

  /** `bytes` bytes of zeros; -XX:MaxDirectMemorySize of the JVM bounds them. */
  def apply(bytes: Long): AllocatedSegment =
    new AllocatedSegment(DirectWindows.of(bytes)((_, count) => ByteBuffer.allocateDirect(count.toInt)))
}
