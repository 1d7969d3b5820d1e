package sparkdl.comm.ps

import java.nio.{ByteBuffer, ByteOrder}

import scala.reflect.ClassTag

/** Direct buffers that a segment consists of. */
private[ps] object DirectWindows {

  /** Bytes of a window. A Java buffer holds less than 2 GiB. */
  val Bytes: Long = 1L << 30

  /**
   * Return windows of `bytes` bytes in all, in native byte order.
   *
   * @param make a buffer from the first byte and the number of bytes
   */
  def create[B <: ByteBuffer: ClassTag](bytes: Long)(make: (Long, Long) => B): Array[B] =
    (0L until bytes by Bytes).map { begin =>
      val window = make(begin, math.min(Bytes, bytes - begin))
      window.order(ByteOrder.nativeOrder)
      window
    }.toArray

  /** Free the memory at once. The garbage collector would free it at some later time. */
  def free(window: ByteBuffer): Unit = unsafe.invokeCleaner(window)

  private lazy val unsafe = {
    val field = Class.forName("sun.misc.Unsafe").getDeclaredField("theUnsafe")
    field.setAccessible(true)
    field.get(null).asInstanceOf[sun.misc.Unsafe]
  }
}
