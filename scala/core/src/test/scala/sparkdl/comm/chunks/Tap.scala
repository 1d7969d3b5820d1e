package sparkdl.comm.chunks

import java.io.{ByteArrayOutputStream, IOException}
import java.net.{InetAddress, ServerSocket, Socket}

import sparkdl.comm.transport.ChunkPeer

/** Stands between a client and `to`: it hears what they say, and can cut them off. */
final class Tap(to: ChunkPeer) {
  private val listening = new ServerSocket(0, 50, InetAddress.getByName("127.0.0.1"))
  private val said = new ByteArrayOutputStream
  private var sockets = Vector.empty[Socket]

  val here: ChunkPeer = ChunkPeer("127.0.0.1", listening.getLocalPort)

  /** Everything, in both directions, one character for each byte. */
  def heard: String = synchronized(said.toString("ISO-8859-1"))

  /** How many connections there have been. */
  def connections: Int = synchronized(sockets.size / 2)

  def cut(): Unit = synchronized(sockets.foreach(_.close()))

  def close(): Unit = {
    listening.close()
    cut()
  }

  inThread {
    while (true) {
      val client = listening.accept()
      val server = new Socket(to.host, to.port)
      synchronized(sockets ++= Seq(client, server))
      inThread(copy(client, server))
      inThread(copy(server, client))
    }
  }

  private def copy(from: Socket, to: Socket): Unit = {
    val buffer = new Array[Byte](1 << 16)
    Iterator.continually(from.getInputStream.read(buffer)).takeWhile(_ >= 0).foreach { count =>
      synchronized(said.write(buffer, 0, count))
      to.getOutputStream.write(buffer, 0, count)
    }
    to.close()
  }

  private def inThread(body: => Unit): Unit = {
    val run: Runnable = () =>
      try body
      catch { case _: IOException => () } // closed
    val thread = new Thread(run, "test-tap")
    thread.setDaemon(true)
    thread.start()
  }
}
