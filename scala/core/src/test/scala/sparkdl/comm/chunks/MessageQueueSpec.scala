// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.chunks

import java.io.IOException
import java.lang.reflect.{InvocationHandler, Proxy}

import io.netty.buffer.ByteBuf
import io.netty.channel.Channel
import io.netty.channel.embedded.EmbeddedChannel
import org.scalatest.funsuite.AnyFunSuite

import org.apache.spark.network.protocol.{Message, OneWayMessage}

import sparkdl.comm.ManualClock
import sparkdl.comm.transport.{Chunk, ChunkPeer, MessagePart, PeerMessages}

class MessageQueueSpec extends AnyFunSuite {
  private def batches(channel: EmbeddedChannel): Seq[Seq[Int]] = {
    channel.runPendingTasks()
    received(channel).map {
      case Wire.Batch(parts) => parts.map(_.bytes.remaining)
      case other => fail(s"$other")
    }
  }

  /** Return the messages that were written to the channel. */
  private def received(channel: EmbeddedChannel): Seq[Wire.Message] =
    Iterator.continually(channel.readOutbound[ByteBuf]()).takeWhile(_ != null).toVector.map {
      sent =>
        assert(sent.readLong() === 8L + sent.readableBytes)
        assert(Message.Type.decode(sent) === Message.Type.OneWayMessage)
        Wire.decode(OneWayMessage.decode(sent).body.nioByteBuffer())
    }

  private def message(size: Int): MessagePart = MessagePart(0, new Array[Byte](size), 0, size)

  test(
    "waiting messages are batched up to the largest message, and the first one is sent at once"
  ) {
    val queue = new MessageQueue
    val sizes = Seq(1, 2, 3, PeerMessages.MaxBytes - 200, 50, 200)
    sizes.foreach(size => queue.add(message(size), _ => ()))
    val channel = new EmbeddedChannel
    queue.onOpened(channel)
    assert(batches(channel) === Seq(Seq(1, 2, 3, PeerMessages.MaxBytes - 200, 50), Seq(200)))
    queue.add(message(7), _ => ())
    assert(batches(channel) === Seq(Seq(7)))
    channel.close()
  }

  test("the sender of a message learns its confirmation, or the end of the connection") {
    val queue = new MessageQueue
    var known = Vector.empty[(Int, Option[Long])]
    def add(number: Int): Unit = queue.add(message(number), arrived => known :+= number -> arrived)
    (1 to 3).foreach(add)
    assert(!queue.confirm(4, 7) && !queue.confirm(-1, 7) && known.isEmpty, "so many were not sent")
    assert(queue.confirm(2, 7) && known === Vector(1 -> Some(7), 2 -> Some(7)))
    assert(!queue.confirm(1, 8), "more were confirmed before")
    assert(queue.confirm(2, 8) && known.size === 2)
    add(4)
    queue.end()
    add(5)
    assert(known.drop(2) === Vector(3 -> None, 4 -> None, 5 -> None))
    assert(!queue.confirm(3, 9))
  }

  test("a callback that throws keeps no other sender from its confirmation or loss") {
    val queue = new MessageQueue
    var known = Vector.empty[(Int, Option[Long])]
    (1 to 4).foreach { number =>
      queue.add(
        message(number),
        arrived => {
          known :+= number -> arrived
          if (number % 2 == 1) throw new OutOfMemoryError(s"heap $number")
        }
      )
    }
    assert(intercept[OutOfMemoryError](queue.confirm(2, 7)).getMessage === "heap 1")
    assert(known === Vector(1 -> Some(7), 2 -> Some(7)))
    assert(intercept[OutOfMemoryError](queue.end()).getMessage === "heap 3")
    assert(known.drop(2) === Vector(3 -> None, 4 -> None))
  }

  test("the end of a connection reaches all that waits for it, also if its owner throws") {
    val clock = new ManualClock
    var ends = Vector.empty[String]
    val connection = new Connection(clock, _ => throw new OutOfMemoryError("heap"))
    connection.ask(new PendingFetch(
      ChunkPeer("there", 1, "1"),
      Chunk(1, "block", 0, 10),
      _ => (),
      10,
      new DeadlineTimer(clock),
      failure => ends :+= s"fetch ${failure.map(_.getClass.getSimpleName)}"
    ))
    connection.send(message(1), arrived => ends :+= s"message $arrived")
    intercept[OutOfMemoryError](connection.end(new IOException("it broke")))
    assert(ends === Vector("fetch Some(PeerLost)", "message None"))
  }

  /** Return a view of `channel` whose event loop takes no task while `isFull`. */
  private def limited(channel: EmbeddedChannel)(isFull: => Boolean): Channel = {
    val calls: InvocationHandler = (_, method, arguments) =>
      if (isFull && method.getName == "eventLoop") throw new OutOfMemoryError("heap")
      else method.invoke(channel, Option(arguments).getOrElse(Array.empty[AnyRef]): _*)
    Proxy.newProxyInstance(getClass.getClassLoader, Array[Class[_]](classOf[Channel]), calls)
      .asInstanceOf[Channel]
  }

  test("a confirmation that could not be scheduled is sent with the next one") {
    val channel = new EmbeddedChannel
    var isFull = true
    val confirmations = new ConfirmationSender(limited(channel)(isFull), new ManualClock)
    intercept[OutOfMemoryError](confirmations.recordArrivals(1))
    isFull = false
    confirmations.recordArrivals(2)
    channel.runPendingTasks()
    assert(received(channel) === Seq(Wire.Received(3, 0)))
  }

  test("a batch that the event loop does not take ends the connection") {
    val channel = new EmbeddedChannel
    val queue = new MessageQueue
    channel.closeFuture.addListener((_: io.netty.util.concurrent.Future[Void]) => queue.end())
    var ends = Vector.empty[Option[Long]]
    queue.add(message(1), ends :+= _)
    intercept[OutOfMemoryError](queue.onOpened(limited(channel)(isFull = true)))
    assert(ends === Seq(None) && !channel.isOpen)
  }
}
