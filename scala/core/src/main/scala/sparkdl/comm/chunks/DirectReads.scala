package sparkdl.comm.chunks

import java.nio.ByteBuffer
import java.nio.channels.ScatteringByteChannel

import scala.jdk.CollectionConverters._

import io.netty.buffer.{ByteBuf, ByteBufAllocator, UnpooledHeapByteBuf}
import io.netty.channel.{Channel, ChannelInboundHandler, RecvByteBufAllocator}
import io.netty.channel.RecvByteBufAllocator.DelegatingHandle
import io.netty.channel.socket.nio.NioSocketChannel

import org.apache.spark.network.util.TransportFrameDecoder

/**
 * Has the bytes of one connection read from the socket right into the target of the fetch that they are for. What Netty passes
 * on then is a buffer that only counts them, so that Spark's library goes on as if it had them. All calls come from the
 * connection's own thread.
 *
 * @param usual reads until the first fetch begins: for good, if what comes is decrypted first
 */
private[chunks] final class DirectReads(usual: RecvByteBufAllocator) extends RecvByteBufAllocator {
  import DirectReads._

  private var begun = false
  private var reading: Option[PendingFetch] = None

  /** From now on, and for as many bytes as it says, nothing comes but the rest of this fetch's chunk. */
  def begin(fetch: PendingFetch): Unit = {
    begun = true
    reading = Some(fetch)
  }

  def end(): Unit = reading = None

  override def newHandle() = new Reader

  final class Reader extends DelegatingHandle(usual.newHandle()) {
    override def allocate(allocator: ByteBufAllocator): ByteBuf =
      if (begun) reading.filter(_.missing > 0).fold(allocator.ioBuffer(ReadBytes))(new Counted(allocator, _))
      else super.allocate(allocator)
    override def continueReading(): Boolean = !begun && super.continueReading()
  }
}

private[chunks] object DirectReads {

  /** Small: what comes together with the head of an answer has to be copied. */
  private val ReadBytes = 1 << 14
  private val MostBytes = 1 << 20

  /** What the counting buffers have instead of the bytes; nobody reads what is in it. */
  private val Scrap = new Array[Byte](MostBytes)

  /** Reads at most `atMost` bytes and drops them. */
  def drop(from: ScatteringByteChannel, atMost: Int): Int =
    from.read(ByteBuffer.wrap(Scrap, 0, math.min(atMost, MostBytes)))

  private final class Counted(allocator: ByteBufAllocator, fetch: PendingFetch)
      extends UnpooledHeapByteBuf(allocator, Scrap, MostBytes) {
    private val begin = MostBytes - math.min(fetch.missing, MostBytes)
    setIndex(begin, begin)
    override def setBytes(index: Int, from: ScatteringByteChannel, length: Int): Int = fetch.read(from, length)
  }

  /** Comes before the channel's first read, with which Netty takes its allocator for good: authentication reads already. */
  def install(channel: Channel): Unit = channel match {
    case socket: NioSocketChannel => socket.config.setRecvByteBufAllocator(new DirectReads(allocator(socket)))
    case _ => ()
  }

  /** None if what the socket has is not what the peer sent: if it is decrypted on the way, or another kind of socket. */
  def on(channel: Channel): Option[DirectReads] = {
    val first = channel.pipeline.asScala.takeWhile(_.getKey != TransportFrameDecoder.HANDLER_NAME).map(_.getValue)
    val plain = !first.exists(_.isInstanceOf[ChannelInboundHandler])
    allocator(channel) match {
      case reads: DirectReads if plain => Some(reads)
      case _ => None
    }
  }

  private def allocator(channel: Channel): RecvByteBufAllocator =
    channel.config.getRecvByteBufAllocator[RecvByteBufAllocator]()
}
