package sparkdl.comm.ps

import java.nio.{ByteBuffer, ByteOrder}

import scala.reflect.ClassTag

/** The buffers outside of the heap that a segment consists of. */
private[ps] object DirectWindows {

  /** A Java buffer holds less than 2 GiB. */
  val Bytes: Long = 1L << 30

  /** @param make a buffer of the segment's bytes from the first number on, of as many as the second says */
  def of[B <: ByteBuffer: ClassTag](bytes: Long)(make: (Long, Long) => B): Array[B] =
    (0L until bytes by Bytes).map { begin =>
      val window = make(begin, math.min(Bytes, bytes - begin))
      window.order(ByteOrder.nativeOrder)
      window
    }.toArray

  /** Gives the memory back at once: the garbage collector would do so when it likes. */
  def free(window: ByteBuffer): Unit = unsafe.invokeCleaner(window)

  private lazy val unsafe = {
    val field = Class.forName("sun.misc.Unsafe").getDeclaredField("theUnsafe")
    field.setAccessible(true)
    field.get(null).asInstanceOf[sun.misc.Unsafe]
  }
}
